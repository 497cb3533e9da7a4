//! Items belong to the activities of the connections that stored them: the memory scheduler takes those of the activity
//! above its budget.

use isola_abi::id::ActivityId;
use isola_abi::report::RECLAIM;
use isola_ebbs::platform;
use isola_events::activity::charge_to;
use isola_events::reclaim::lost_bytes;
use isola_events::{current_activity, register_activity, sleep};
use isola_hosted::Loss;
use isola_iobuf::IoBuf;
use isola_kv::{Config, KeyHasher, OwnedBytes, Server};
use isola_net::{TcpStream, listen_with};
use isola_resources::{Entitlement, MEMORY, MemoryBudget};
use isola_test_cells::{dial, run_server_and_client};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const CELL_BYTES: usize = 64 << 20;

/// The tenants' ports, and the items that each of them stores.
const TENANTS: [(u16, u32); 2] = [(11211, 4_000), (11212, 2_000)];

const VALUE_LEN: usize = 1_000;

/// The requests that are sent at once.
const AT_ONCE: usize = 50;

/// The hard budget of the first tenant: a part of its items.
const HARD_BYTES: u64 = 1 << 20;

/// The step that both cells have reached.
static STEP: AtomicU32 = AtomicU32::new(0);

async fn wait_for_step(step: u32) {
    while STEP.load(Ordering::Acquire) < step {
        sleep(Duration::from_millis(1)).await;
    }
}

fn set_budget(activity: ActivityId, memory: MemoryBudget) {
    MEMORY.set_entitlement(activity, Entitlement { memory, ..Entitlement::default() }).unwrap();
}

/// Returns the bytes of each tenant's items, and of all others.
fn usage(server: &Server, tenants: [ActivityId; 2]) -> [u64; 3] {
    let mut usage = [0; 3];
    for id in server.shards.ids() {
        for OwnedBytes { owner, bytes } in server.shards.lock(id).unwrap().usage() {
            let of = tenants.iter().position(|tenant| owner.activity(server.activity) == Some(*tenant));
            usage[of.unwrap_or(2)] += bytes as u64;
        }
    }
    usage
}

async fn serve() {
    let config = Config::for_memory(CELL_BYTES / 2, 1 << 20).unwrap();
    let server = Server::new(config, KeyHasher::new(5), isola_kv::unix_time());
    let server: Arc<Server> = isola_kv::prepare(server, || CELL_BYTES);
    let application = current_activity();
    let mut listening = Vec::new();
    let tenants = TENANTS.map(|(port, _)| {
        let tenant = register_activity(&format!("port {port}")).unwrap();
        charge_to(tenant);
        listening.push(listen_with(port, 8, isola_kv::serve).unwrap());
        charge_to(application);
        tenant
    });
    wait_for_step(1).await;
    let stored = TENANTS.map(|(_, items)| u64::from(items) * VALUE_LEN as u64);
    let [first, second, others] = usage(&server, tenants);
    assert!(first > stored[0] && second > stored[1] && others == 0, "{first} {second} {others}");

    set_budget(tenants[0], MemoryBudget { soft: None, hard: Some(HARD_BYTES) });
    platform().report().memory.pressure.fetch_or(RECLAIM, Ordering::Relaxed);
    // The memory of the item table is freed in chunks.
    while usage(&server, tenants)[0] > HARD_BYTES || lost_bytes(tenants[0]) < (first - HARD_BYTES) / 10 * 9 {
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(usage(&server, tenants)[1], second);
    assert_eq!((lost_bytes(tenants[1]), lost_bytes(application)), (0, 0));
    STEP.store(2, Ordering::Release);

    wait_for_step(3).await;
    let [first, second, others] = usage(&server, tenants);
    assert!(first < 600 && second > stored[1] && others == 0, "{first} {second} {others}");
    STEP.store(4, Ordering::Release);
}

/// Sends a request for each item, many at once, and returns the answers, a line each.
async fn ask(stream: &mut TcpStream, items: u32, request: impl Fn(u32) -> String) -> Vec<String> {
    let mut answers = Vec::new();
    for first in (0..items).step_by(AT_ONCE) {
        let requests: String = (first..items.min(first + AT_ONCE as u32)).map(&request).collect();
        stream.write(IoBuf::from(requests.into_bytes()).into()).await.unwrap();
        let mut received = String::new();
        while received.lines().count() < (items.min(first + AT_ONCE as u32) - first) as usize
            || !received.ends_with("\r\n")
        {
            let more = stream.read().await.unwrap().expect("the connection is open");
            received.push_str(core::str::from_utf8(&more.to_vec()).unwrap());
        }
        answers.extend(received.lines().map(str::to_owned));
    }
    answers
}

async fn store(stream: &mut TcpStream, of: u16, items: u32) {
    let value = "v".repeat(VALUE_LEN);
    let request = |number| format!("set {of}-{number} 0 0 {VALUE_LEN}\r\n{value}\r\n");
    let answers = ask(stream, items, request).await;
    assert!(answers.iter().all(|answer| answer == "STORED"));
}

/// Returns the number of items that are there.
async fn count(stream: &mut TcpStream, of: u16, items: u32) -> u32 {
    let answers = ask(stream, items, |number| format!("touch {of}-{number} 0\r\n")).await;
    assert!(answers.iter().all(|answer| ["TOUCHED", "NOT_FOUND"].contains(&answer.as_str())));
    answers.iter().filter(|answer| *answer == "TOUCHED").count() as u32
}

#[test]
fn an_activity_above_its_budget_loses_its_items_and_others_keep_theirs() {
    let client = || async {
        let mut streams = Vec::new();
        for (port, items) in TENANTS {
            let mut stream = dial(port).await;
            store(&mut stream, port, items).await;
            streams.push(stream);
        }
        STEP.store(1, Ordering::Release);
        wait_for_step(2).await;
        let [(first, of_first), (second, of_second)] = TENANTS;
        let left = count(&mut streams[0], first, of_first).await;
        assert!((HARD_BYTES / 1_300..=HARD_BYTES / 1_000).contains(&u64::from(left)), "{left}");
        assert_eq!(count(&mut streams[1], second, of_second).await, of_second);
        // An overwritten item is that of the tenant that overwrites it.
        store(&mut streams[1], first, of_first).await;
        STEP.store(3, Ordering::Release);
        wait_for_step(4).await;
    };
    run_server_and_client(2, Loss::Never, serve, client);
}

static IS_BOUNDED: AtomicBool = AtomicBool::new(false);

/// The heap of this process is not the cell's: it counts nothing, as it counts less if another activity allocates.
#[test]
fn items_of_an_activity_stay_within_its_hard_budget_even_if_the_heap_counts_less() {
    let server = || async {
        let config = Config::for_memory(CELL_BYTES / 2, 1 << 20).unwrap();
        let server = Server::new(config, KeyHasher::new(5), isola_kv::unix_time());
        let server: Arc<Server> = isola_kv::prepare(server, || CELL_BYTES);
        let tenant = register_activity("tenant").unwrap();
        set_budget(tenant, MemoryBudget { soft: None, hard: Some(HARD_BYTES) });
        charge_to(tenant);
        let _listening = listen_with(11211, 8, isola_kv::serve).unwrap();
        let bytes = || usage(&server, [tenant; 2])[0];
        while bytes() <= 2 * HARD_BYTES {
            sleep(Duration::from_millis(1)).await;
        }
        while !(HARD_BYTES / 2..=HARD_BYTES).contains(&bytes()) {
            sleep(Duration::from_millis(1)).await;
        }
        IS_BOUNDED.store(true, Ordering::Relaxed);
        std::future::pending::<()>().await;
    };
    let client = || async {
        let mut stream = dial(11211).await;
        store(&mut stream, 1, 4_000).await;
        while !IS_BOUNDED.load(Ordering::Relaxed) {
            // The server looks once in each second in which clients send requests.
            sleep(Duration::from_millis(100)).await;
            store(&mut stream, 1, 1).await;
        }
    };
    run_server_and_client(1, Loss::Never, server, client);
}

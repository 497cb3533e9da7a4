//! Rules that attribute accepted connections to activities.

use isola_abi::grid::ActivityRule;
use isola_abi::id::ActivityId;
use isola_activities::{list, name_of, named, parent_of};
use isola_events::{current_activity, sleep};
use isola_hosted::Loss;
use isola_iobuf::{Chain, IoBuf};
use isola_net::{
    ActivityRuleError, ConnectionHandler, MAX_ACTIVITY_RULES, TcpConnection, TcpStream, activity_rules,
    add_activity_rule, clear_activity_rules, listen, listen_with,
};
use isola_test_cells::{dial, run_server_and_client};
use std::future::pending;
use std::time::Duration;

fn rule(port: Option<u16>, peer: Option<&str>, activity: &str, each_connection: bool) -> ActivityRule {
    let peer = peer.map(|network| network.parse().unwrap());
    ActivityRule { port, peer, activity: activity.to_owned(), each_connection }
}

/// Returns the names of the activity and its parent.
fn describe(activity: ActivityId) -> Chain {
    let parent = parent_of(activity).map_or("none".to_owned(), name_of);
    IoBuf::from(format!("{parent}/{}", name_of(activity)).into_bytes()).into()
}

/// Sends the activity for which the connection is served, and waits for the peer's end.
async fn name_the_activity(mut stream: TcpStream) {
    let sent = stream.write(describe(current_activity())).await;
    stream.shutdown();
    if sent.is_ok() {
        while let Ok(Some(_)) = stream.read().await {}
    }
}

/// Does the same in a handler, at the first data.
struct NameTheActivity;

impl ConnectionHandler for NameTheActivity {
    fn received(&mut self, connection: &TcpConnection, _: Chain) {
        connection.send(&mut describe(current_activity())).unwrap();
        connection.shutdown();
    }
}

/// Sends the number of activities below `each`.
async fn count_children(mut stream: TcpStream) {
    let above = named("each")[0];
    let count = list().iter().filter(|activity| activity.parent == Some(above)).count();
    let _ = stream.write(IoBuf::from(vec![count as u8]).into()).await;
}

async fn serve() {
    add_activity_rule(rule(Some(8), Some("203.0.113.0/24"), "documentation", false)).unwrap();
    add_activity_rule(rule(Some(8), Some("0.0.0.0/0"), "eight", false)).unwrap();
    add_activity_rule(rule(Some(9), None, "each", true)).unwrap();
    add_activity_rule(rule(Some(10), None, "handler", false)).unwrap();
    let _streams = [7, 8, 9].map(|port| listen(port, 8, name_the_activity).unwrap());
    let _handlers = listen_with(10, 8, |_| NameTheActivity).unwrap();
    let _count = listen(11, 8, count_children).unwrap();
    pending::<()>().await;
}

/// Reads up to the end of the peer's stream.
async fn answer(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while let Some(data) = stream.read().await.unwrap() {
        data.parts().for_each(|part| text.extend_from_slice(part));
    }
    String::from_utf8(text).unwrap()
}

async fn children() -> u8 {
    let mut stream = dial(11).await;
    isola_test_cells::read_exactly(&mut stream, 1).await[0]
}

#[test]
fn the_first_matching_rule_names_the_activity_of_a_connection() {
    run_server_and_client(1, Loss::Never, serve, || async {
        assert_eq!(answer(&mut dial(7).await).await, "none/application");
        assert_eq!(answer(&mut dial(8).await).await, "none/eight");
        let mut handled = dial(10).await;
        handled.write(IoBuf::from_static(b"?").into()).await.unwrap();
        assert_eq!(answer(&mut handled).await, "none/handler");
    });
}

#[test]
fn each_connection_has_an_activity_of_its_own_until_its_end() {
    run_server_and_client(2, Loss::Never, serve, || async {
        let mut open = Vec::new();
        for number in 1..=3 {
            let mut stream = dial(9).await;
            let local = stream.local().unwrap();
            assert_eq!(answer(&mut stream).await, format!("each/{local}"));
            open.push(stream);
            assert_eq!(children().await, number);
        }
        drop(open);
        while children().await != 0 {
            sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn rules_are_listed_in_their_order_limited_and_removed() {
    run_server_and_client(
        1,
        Loss::Never,
        || async { pending::<()>().await },
        || async {
            for number in 0..MAX_ACTIVITY_RULES {
                add_activity_rule(rule(Some(number as u16), None, "all", false)).unwrap();
            }
            let more = add_activity_rule(rule(None, None, "one too many", false));
            assert_eq!(more, Err(ActivityRuleError::TooMany));
            assert!(
                activity_rules().iter().enumerate().all(|(number, rule)| rule.port == Some(number as u16))
            );
            assert_eq!((named("all").len(), named("one too many").len()), (1, 0));
            clear_activity_rules();
            assert!(activity_rules().is_empty() && named("all").len() == 1);
        },
    );
}

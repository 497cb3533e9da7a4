//! Whether KVM works on this host: tested by booting the supervisor, and cached.
//!
//! A `/dev/kvm` that opens proves nothing. Under some hypervisors a guest hangs, or executes a thousand times too
//! slowly; only a machine that answers in time proves that KVM works.

use super::boot::{BootError, Lifetime, NewMachine, ProcessMode};
use super::options::{Accelerator, AcceleratorChoice, MachineModel, MachineOptions, Topology, Uplink};
use super::qemu::{Boot, Qemu};
use super::record::{MachineKind, write_whole};
use super::state::StateRoot;
use isola_abi::size::ByteSize;
use serde::{Deserialize, Serialize};
use std::env;
use std::fs::{self, OpenOptions};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a machine may take to answer under KVM. It takes a fraction of a second if KVM works.
const LIMIT: Duration = Duration::from_secs(3);

/// The name of the test machine.
const PROBE_MACHINE: &str = "kvm-probe";

/// The result of the test of KVM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvmProbe {
    /// Whether a machine ran.
    pub works: bool,
    /// The reason for the result.
    pub reason: String,
}

#[derive(Serialize, Deserialize)]
struct CachedProbe {
    /// The host that the answer is valid for: see [`host_key`].
    host: String,
    answer: KvmProbe,
}

/// Selects the accelerator of a machine, and returns the reason.
pub fn choose(
    choice: AcceleratorChoice,
    qemu: &Qemu,
    root: &StateRoot,
    supervisor: Option<&Path>,
) -> (Accelerator, KvmProbe) {
    let refusal = |reason: &str| KvmProbe { works: false, reason: reason.into() };
    match choice {
        AcceleratorChoice::Tcg => (Accelerator::Tcg, refusal("not asked for")),
        AcceleratorChoice::Kvm => (Accelerator::Kvm, refusal("asked for, not tried out")),
        AcceleratorChoice::Auto => {
            let answer = kvm(qemu, root, supervisor, CacheUse::Allowed);
            (if answer.works { Accelerator::Kvm } else { Accelerator::Tcg }, answer)
        }
    }
}

/// Whether a cached result may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheUse {
    /// Use a cached result.
    Allowed,
    /// Test again.
    Forbidden,
}

/// Returns whether KVM works with this QEMU. The test needs a `supervisor` image to boot.
pub fn kvm(qemu: &Qemu, root: &StateRoot, supervisor: Option<&Path>, cached: CacheUse) -> KvmProbe {
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        return KvmProbe { works: false, reason: format!("/dev/kvm cannot be opened: {error}") };
    }
    let host = host_key(qemu);
    if cached == CacheUse::Allowed
        && let Some(answer) = cached_probe(&host)
    {
        return answer;
    }
    let Some(supervisor) = supervisor else {
        return KvmProbe { works: false, reason: "not tried out, as there is no supervisor image".into() };
    };
    let answer = match try_out(qemu, root, supervisor) {
        Ok(()) => KvmProbe { works: true, reason: "a machine ran under it".into() },
        Err(reason) => KvmProbe { works: false, reason },
    };
    store_probe(&host, &answer);
    answer
}

/// Boots the supervisor under KVM, and waits for its answer.
fn try_out(qemu: &Qemu, root: &StateRoot, supervisor: &Path) -> Result<(), String> {
    let options = MachineOptions {
        cores: 2,
        topology: Topology::default(),
        memory: ByteSize(128 << 20),
        nics: 0,
        disks: 0,
        model: MachineModel::Q35,
        cpu: "max".into(),
        uplink: Uplink::User,
    };
    let dir = root.machine(&PROBE_MACHINE.parse().map_err(|error| format!("{error}"))?);
    let machine = NewMachine {
        options,
        accelerator: Accelerator::Kvm,
        qemu,
        kind: MachineKind::Supervised,
        lifetime: Lifetime::OfThisProcess,
        process_mode: ProcessMode::Detached,
    };
    let end = Instant::now() + LIMIT;
    let mut waiting =
        || if Instant::now() < end { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    match machine.start(root, &dir, Boot::Supervisor { image: supervisor }, &mut waiting) {
        Ok(locked) => locked.down().map_err(|error| error.to_string()),
        Err(BootError::Interrupted) => Err(format!("a machine did not answer within {} s", LIMIT.as_secs())),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the properties on which the result depends: kernel, processor, QEMU, and version of isola.
fn host_key(qemu: &Qemu) -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors.lines().find(|line| line.starts_with("model name")).unwrap_or_default();
    let model = model.split_once(':').map_or("", |(_, model)| model).trim();
    format!("{} | {model} | {} | isola {}", kernel.trim(), qemu.version, env!("CARGO_PKG_VERSION"))
}

fn cache_file() -> Option<PathBuf> {
    let folder = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(cache.join("isola").join("kvm.json"))
}

fn cached_probe(host: &str) -> Option<KvmProbe> {
    let cached_probe: CachedProbe = serde_json::from_slice(&fs::read(cache_file()?).ok()?).ok()?;
    (cached_probe.host == host).then_some(cached_probe.answer)
}

fn store_probe(host: &str, answer: &KvmProbe) {
    // If the result cannot be saved, the next command repeats the test.
    let Some(file) = cache_file() else { return };
    let cached_probe = CachedProbe { host: host.to_owned(), answer: answer.clone() };
    let folder = file.parent().map(fs::create_dir_all);
    if let (Some(Ok(())), Ok(bytes)) = (folder, serde_json::to_vec_pretty(&cached_probe)) {
        let _ = write_whole(&file, &bytes);
    }
}

//! `isola doctor`: checks whether this host meets isola's requirements.

use super::{Context, Failure};
use crate::image::SUPERVISOR;
use crate::machine::accel::{self, CacheUse};
use crate::machine::qemu::{OLDEST, Qemu};
use crate::machine::{LockedMachine, MachineError};
use crate::output::progress::Progress;
use clap::Args;
use serde::Serialize;
use std::fs;
use std::net::TcpListener;
use std::process::{Command, ExitCode};

/// Checks whether this host meets isola's requirements, and advises how to meet them
#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is 1 if a requirement for all machines is missing. A remark, such as \
that KVM does not work, does not affect it.")]
pub(super) struct Arguments {
    /// Tests KVM again instead of using the last result
    #[arg(long)]
    probe: bool,
}

/// A check: an element of the answer's array.
#[derive(Debug, Serialize)]
struct Check {
    /// The checked component: `qemu`, `machines`, `kvm`, `supervisor`, `images`, `state`, `ports` or `up`.
    check: &'static str,
    /// `ok`, `remark` or `missing`.
    result: Outcome,
    /// The finding.
    found: String,
    /// Advice.
    advice: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Ok,
    Remark,
    Missing,
}

impl Check {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, result: Outcome::Ok, found: found.into(), advice: None }
    }

    fn bad(check: &'static str, result: Outcome, found: impl Into<String>, advice: &str) -> Self {
        Self { check, result, found: found.into(), advice: Some(advice.to_owned()) }
    }
}

pub(super) fn doctor(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let progress = Progress::waiting(&context.output, "checking this host");
    progress.tick();
    let qemu = Qemu::from_environment();
    let cached = if arguments.probe { CacheUse::Forbidden } else { CacheUse::Allowed };
    let mut checks = Vec::new();
    match &qemu {
        Ok(qemu) => {
            let program = qemu.program.display();
            checks.push(Check::ok("qemu", format!("{program}, version {}", qemu.version)));
            checks.push(machine_types(qemu));
            checks.push(kvm(context, qemu, cached));
        }
        Err(error) => {
            let advice = format!(
                "install QEMU {}.{} or newer (Debian, Ubuntu: `apt-get install qemu-system-x86`)",
                OLDEST.0, OLDEST.1
            );
            checks.push(Check::bad("qemu", Outcome::Missing, error.to_string(), &advice));
        }
    }
    checks.extend([supervisor(context), images(context), state(context), ports()]);
    checks.extend(machines(context));
    drop(progress);
    let healthy = checks.iter().all(|check| check.result != Outcome::Missing);
    context.output.answer(&checks, || checks.iter().map(line).collect())?;
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::from(super::failure::REFUSED) })
}

fn line(check: &Check) -> String {
    let word = match check.result {
        Outcome::Ok => "ok",
        Outcome::Remark => "remark",
        Outcome::Missing => "MISSING",
    };
    let advice = check.advice.as_ref().map(|advice| format!("\n{:21}-> {advice}", "")).unwrap_or_default();
    format!("{:<8} {:<11} {}{advice}\n", word, check.check, check.found)
}

fn machine_types(qemu: &Qemu) -> Check {
    let output = Command::new(&qemu.program).args(["-machine", "help"]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let known = |machine: &str| text.lines().any(|line| line.split_whitespace().next() == Some(machine));
    match (known("q35"), known("microvm")) {
        (true, true) => Check::ok("machines", "q35 and microvm"),
        (true, false) => Check::bad(
            "machines",
            Outcome::Remark,
            "q35, but no microvm",
            "use `isola up` without `--machine microvm`",
        ),
        _ => Check::bad(
            "machines",
            Outcome::Missing,
            "this QEMU has no machine q35",
            "install a QEMU for x86-64 (Debian, Ubuntu: `apt-get install qemu-system-x86`)",
        ),
    }
}

fn kvm(context: &Context, qemu: &Qemu, cached: CacheUse) -> Check {
    let supervisor = context.images.find(SUPERVISOR).ok().and_then(|path| path.canonicalize().ok());
    let answer = accel::kvm(qemu, &context.root, supervisor.as_deref(), cached);
    if answer.works {
        return Check::ok("kvm", format!("works: {}", answer.reason));
    }
    let advice = if answer.reason.contains("Permission denied") {
        "machines are emulated; for KVM, add yourself to the group kvm (`usermod -aG kvm USER`) and log in again"
    } else {
        "machines are emulated, which is slower; `isola doctor --probe` tries KVM again"
    };
    Check::bad("kvm", Outcome::Remark, format!("not used: {}", answer.reason), advice)
}

fn supervisor(context: &Context) -> Check {
    match context.images.find(SUPERVISOR) {
        Ok(path) => Check::ok("supervisor", path.display().to_string()),
        Err(error) => Check::bad(
            "supervisor",
            Outcome::Missing,
            error.to_string(),
            "build the images with `cargo xtask images`, or set ISOLA_IMAGES to the folder they are in",
        ),
    }
}

fn images(context: &Context) -> Check {
    let images = context.images.cell_images();
    if images.is_empty() {
        let advice = "build the images with `cargo xtask images`, or give `isola run` a path";
        return Check::bad("images", Outcome::Remark, "no cell images", advice);
    }
    Check::ok("images", images.join(", "))
}

fn state(context: &Context) -> Check {
    let probe = context.root.path().join(".doctor");
    let written = fs::write(&probe, "").and_then(|()| fs::remove_file(&probe));
    let path = context.root.path().display().to_string();
    match written {
        Ok(()) => Check::ok("state", path),
        Err(error) => Check::bad(
            "state",
            Outcome::Missing,
            format!("{path}: {error}"),
            "set ISOLA_STATE to a folder that you can write to",
        ),
    }
}

fn ports() -> Check {
    match TcpListener::bind("127.0.0.1:0") {
        Ok(_) => Check::ok("ports", "can be published on 127.0.0.1"),
        Err(error) => Check::bad(
            "ports",
            Outcome::Remark,
            format!("none can be opened on 127.0.0.1: {error}"),
            "is the interface `lo` up? (`ip link set lo up`)",
        ),
    }
}

/// Checks each machine.
fn machines(context: &Context) -> Vec<Check> {
    let check_machine = |dir| match LockedMachine::take(&context.root, &dir) {
        Ok(locked) if locked.is_running() => Some(Check::ok(
            "up",
            format!("{}, process {}", dir.name, locked.record.qemu.map_or(0, |qemu| qemu.pid)),
        )),
        Ok(_) | Err(MachineError::NotUp { .. }) => None,
        Err(error) => Some(Check::bad("up", Outcome::Remark, error.to_string(), "see `isola ps -a`")),
    };
    context.root.machines().into_iter().filter_map(check_machine).collect()
}

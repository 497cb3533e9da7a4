//! Linux's side: a guest of one processor, with a cgroup for each tenant.

use crate::error::BenchError;
use crate::linux::{MEASURED, READY, SET_ANSWER, Services};
use crate::machine::{Boot, Machine};
use crate::session::{Counting, Session};
use std::ffi::OsString;
use std::time::Duration;

/// The folder of cgroups in the guest.
pub const CGROUPS: &str = "/sys/fs/cgroup";

/// A guest with a cgroup for each of three tenants.
pub struct TenantGuest {
    /// The machine.
    pub machine: Machine,
    names: [&'static str; 3],
}

/// The growth of a value of each tenant's cgroup.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// The growth.
    pub used: [f64; 3],
    /// The time, in us.
    pub elapsed_us: f64,
}

impl TenantGuest {
    /// Boots a guest with further arguments of QEMU, and makes the cgroups.
    pub fn boot(
        session: &Session,
        names: [&'static str; 3],
        more: Vec<OsString>,
    ) -> Result<Self, BenchError> {
        let boot = Boot { extra: more, ..session.linux_boot(Services::Grid, 1) };
        let mut machine = session.machine(&boot, Counting::Off)?;
        machine.wait_for(READY)?;
        let mut this = Self { machine, names };
        for name in names {
            this.run(&format!("busybox mkdir {CGROUPS}/{name}"))?;
        }
        Ok(this)
    }

    /// Runs a shell command to its end.
    ///
    /// # Errors
    /// Those of [`Machine::ask`]; [`BenchError::WrongAnswer`] if the command fails.
    pub fn run(&mut self, command: &str) -> Result<(), BenchError> {
        match self.machine.ask(&format!("run {command}"), SET_ANSWER)? {
            0 => Ok(()),
            status => Err(BenchError::WrongAnswer {
                service: "the Linux guest".into(),
                request: command.to_owned(),
                answer: format!("exit status {status}"),
            }),
        }
    }

    /// Starts a program in a tenant's cgroup.
    pub fn tenant(&mut self, name: &str, program: &str) {
        self.machine.send_line(&format!("tenant {name} {program}"));
    }

    /// Writes a file of each tenant's cgroup.
    pub fn set(&mut self, file: &str, values: [u32; 3]) -> Result<(), BenchError> {
        for (name, value) in self.names.into_iter().zip(values) {
            self.run(&format!("echo {value} >{CGROUPS}/{name}/{file}"))?;
        }
        Ok(())
    }

    /// Measures by how much a value in a file of each tenant's cgroup grows in a time. The measuring process has the
    /// highest priority, so that no tenant runs between its readings of the files.
    pub fn measure(&mut self, time: Duration, file: &str, key: &str) -> Result<Growth, BenchError> {
        let files = self.names.map(|name| format!("{CGROUPS}/{name}/{file}")).join(" ");
        let question = format!("run chrt --fifo 50 linux-tenants measure {} {key} {files}", time.as_millis());
        let answer = self.machine.ask_line(&question, MEASURED)?;
        growth(&answer).ok_or_else(|| self.machine.late(&format!("four numbers in {answer:?}")))
    }
}

/// Parses the values of three cgroups, and the time.
fn growth(answer: &str) -> Option<Growth> {
    let numbers: Vec<f64> = answer.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [first, second, third, elapsed_us] = numbers[..] else { return None };
    Some(Growth { used: [first, second, third], elapsed_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_number_for_each_tenant_and_the_time() {
        let expected = Growth { used: [1.0, 20.0, 3.0], elapsed_us: 4000.0 };
        assert_eq!(growth(" 1 20 3 4000"), Some(expected));
        for wrong in ["", "1 2 3", "1 2 3 4 5", "1 x 3 4"] {
            assert_eq!(growth(wrong), None, "{wrong:?}");
        }
    }
}

//! `isola borrow`: borrows a core or memory for the time of a lease.

use super::{Context, Failure, complete};
use crate::cellctl::look_up;
use crate::machine::LockedMachine;
use crate::output::human;
use crate::output::view::{LoanView, MemoryLoanView};
use clap::Args;
use isola_abi::management::{LoanInfo, MAX_LEASE_MS, MemoryLoanInfo};
use isola_abi::size::ByteSize;
use jiff::SignedDuration;
use std::process::ExitCode;
use std::str::FromStr;
use thiserror::Error;

/// Borrows a core or memory for a running cell until the lease ends
#[derive(Debug, Args)]
#[command(after_help = "\
A cell borrows a free core, or one of a cell of lower priority that lends: `isola run --priority` and `--lend`. \
A cell that has lent cores gets one of them back. The core returns to its lender when the lease ends, when it is given \
back, when the lender borrows in its turn, or when the borrower ends. `isola inspect` shows loans, and \
`isola events` their ends.

Memory is lent in the same way, with --memory: `isola run --memory-low` is what a lender keeps. A cell that grows by \
--memory-max borrows by itself when no memory is free, and returns what it does not use. Memory in use is not taken: a \
cell is asked again until it returns all.

Examples:
  isola run -d --name primes --cores 3 --lend 2 --memory 256M --memory-low 64M primes
  isola run -d --name kv --priority 9 --memory 64M --memory-max 256M kv
  isola borrow kv --lease 30s
  isola borrow kv --give-back
  isola borrow kv --memory 128M --lease 10m
  isola borrow kv --memory 128M --give-back")]
pub(super) struct Arguments {
    /// The cell
    #[arg(add = complete::cells())]
    cell: String,
    /// The length of the lease, at most an hour
    #[arg(long, value_name = "TIME", default_value = "10s", conflicts_with = "give_back")]
    lease: Lease,
    /// Borrows this much memory instead of a core; with --give-back, returns at most this much of the latest loan
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// Gives back the core, or the memory, that it has borrowed last
    #[arg(long)]
    give_back: bool,
}

/// The length of a lease, in ms.
#[derive(Clone, Copy, Debug)]
struct Lease(u32);

/// The error for a text that is not a lease.
#[derive(Debug, Error)]
#[error("{0:?} is no lease: write a number and its unit, as in 500ms or 10s, up to an hour")]
struct BadLease(String);

impl FromStr for Lease {
    type Err = BadLease;

    fn from_str(text: &str) -> Result<Self, BadLease> {
        let ms = text.parse::<SignedDuration>().ok().and_then(|lease| u32::try_from(lease.as_millis()).ok());
        ms.filter(|ms| (1..=MAX_LEASE_MS).contains(ms)).map(Self).ok_or_else(|| BadLease(text.to_owned()))
    }
}

pub(super) fn borrow(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let locked = LockedMachine::take_supervised(&context.root, &context.dir())?;
    let mut client = locked.client()?;
    let name = look_up(&locked, &mut client, &arguments.cell)?.spec.name;
    match arguments.memory {
        Some(memory) => {
            let loan = match arguments.give_back {
                true => client.give_memory_back(&name, memory)?,
                false => client.borrow_memory(&name, memory, arguments.lease.0)?,
            };
            let text = || memory_text(&name, &loan, arguments.give_back);
            context.output.answer(&MemoryLoanView::new(&loan), text)?;
        }
        None => {
            let loan = match arguments.give_back {
                true => client.give_core_back(&name)?,
                false => client.borrow_core(&name, arguments.lease.0)?,
            };
            context.output.answer(&LoanView::new(&loan), || core_text(&name, &loan, arguments.give_back))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn core_text(name: &str, LoanInfo { core, from, left_ns }: &LoanInfo, gives_back: bool) -> String {
    match (gives_back, from) {
        (true, Some(from)) => format!("core {core} goes back to {from}"),
        (true, None) => format!("core {core} is free"),
        // The core is one that the cell had lent.
        (false, Some(from)) if from == name => format!("core {core} comes back to {name}"),
        (false, from) => {
            let from = from.as_deref().map(|from| format!(" of {from}")).unwrap_or_default();
            format!("core {core}{from}, for {}", human::duration_ns(*left_ns))
        }
    }
}

fn memory_text(name: &str, loan: &MemoryLoanInfo, gives_back: bool) -> String {
    let MemoryLoanInfo { memory, from, left_ns, .. } = loan;
    match (gives_back, from) {
        (true, Some(from)) => format!("{memory} goes back to {from}, as far as {name} does not use it"),
        (true, None) => format!("{memory} will be free, as far as {name} does not use it"),
        // The memory is some that the cell had lent.
        (false, Some(from)) if from == name => format!("{memory} comes back to {name}"),
        (false, from) => {
            let from = from.as_deref().map(|from| format!(" of {from}")).unwrap_or_default();
            format!("{memory}{from}, for {}", human::duration_ns(*left_ns))
        }
    }
}

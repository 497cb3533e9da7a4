//! `isola borrow`: borrows a core for the time of a lease.

use super::{Context, Failure, complete};
use crate::cellctl::look_up;
use crate::machine::LockedMachine;
use crate::output::human;
use crate::output::view::LoanView;
use clap::Args;
use isola_abi::management::MAX_LEASE_MS;
use jiff::SignedDuration;
use std::process::ExitCode;
use std::str::FromStr;
use thiserror::Error;

/// Borrows a core for a running cell until the lease ends
#[derive(Debug, Args)]
#[command(after_help = "\
A cell borrows a free core, or one of a cell of lower priority that lends: `isola run --priority` and `--lend`. \
A cell that has lent cores gets one of them back. The core returns to its lender when the lease ends, when it is given \
back, when the lender borrows in its turn, or when the borrower ends. `isola inspect` shows loans, and \
`isola events` their ends.

Examples:
  isola run -d --name primes --cores 3 --lend 2 primes
  isola run -d --name kv --priority 9 kv
  isola borrow kv --lease 30s
  isola borrow kv --give-back")]
pub(super) struct Arguments {
    /// The cell
    #[arg(add = complete::cells())]
    cell: String,
    /// The length of the lease, at most an hour
    #[arg(long, value_name = "TIME", default_value = "10s", conflicts_with = "give_back")]
    lease: Lease,
    /// Gives back the core that it has borrowed last
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
    let loan = match arguments.give_back {
        true => client.give_core_back(&name)?,
        false => client.borrow_core(&name, arguments.lease.0)?,
    };
    context.output.answer(&LoanView::new(&loan), || {
        let core = loan.core;
        match (arguments.give_back, &loan.from) {
            (true, Some(from)) => format!("core {core} goes back to {from}"),
            (true, None) => format!("core {core} is free"),
            // The core is one that the cell had lent.
            (false, Some(from)) if *from == name => format!("core {core} comes back to {name}"),
            (false, from) => {
                let from = from.as_deref().map(|from| format!(" of {from}")).unwrap_or_default();
                format!("core {core}{from}, for {}", human::duration_ns(loan.left_ns))
            }
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

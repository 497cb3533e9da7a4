//! `isola version`.

use super::{Context, Failure};
use crate::machine::qemu::Qemu;
use clap::Args;
use serde::Serialize;
use std::process::ExitCode;

/// Prints the versions of isola, of its protocol, and of QEMU
#[derive(Debug, Args)]
pub(super) struct Arguments {}

#[derive(Serialize)]
struct VersionView {
    /// The version of isola.
    isola: &'static str,
    /// The version of the formats that isola, the supervisor and cell images share.
    protocol: u32,
    /// The version of QEMU.
    qemu: Option<String>,
}

pub(super) fn version(context: &Context, _: &Arguments) -> Result<ExitCode, Failure> {
    let qemu = Qemu::from_environment().ok().map(|qemu| qemu.version);
    let view = VersionView { isola: env!("CARGO_PKG_VERSION"), protocol: isola_abi::VERSION, qemu };
    context.output.answer(&view, || {
        let qemu = view.qemu.as_deref().unwrap_or("not found: see `isola doctor`");
        format!("isola     {}\nprotocol  {}\nqemu      {qemu}", view.isola, view.protocol)
    })?;
    Ok(ExitCode::SUCCESS)
}

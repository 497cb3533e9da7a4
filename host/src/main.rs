//! The `isola` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    isola_host::cli::main()
}

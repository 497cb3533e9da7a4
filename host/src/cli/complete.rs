//! `isola completion`: completion of verbs, options, and the names of machines, cells, images and volumes.
//!
//! Names come from the machines' records: completion sends no request to a supervisor.

use super::Failure;
use crate::image::ImageStore;
use crate::machine::cells::CellStore;
use crate::machine::state::StateRoot;
use crate::volume::store::VolumeStore;
use clap::Args;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::Shells;
use std::process::ExitCode;

/// Prints the script by which a shell completes isola's commands
#[derive(Debug, Args)]
#[command(after_help = "\
To enable completion in every shell, add one of these lines to the shell's start file:
  bash   source <(isola completion bash)
  zsh    source <(isola completion zsh)
  fish   isola completion fish | source")]
pub(super) struct Arguments {
    /// The shell
    #[arg(value_parser = ["bash", "elvish", "fish", "powershell", "zsh"])]
    shell: String,
}

pub(super) fn completion(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let program = std::env::current_exe()?;
    let shells = Shells::builtins();
    let Some(shell) = shells.completer(&arguments.shell) else {
        return Err(Failure::new(super::failure::USAGE, format!("no completion for {}", arguments.shell)));
    };
    let mut script = Vec::new();
    shell.write_registration("COMPLETE", "isola", "isola", &program.to_string_lossy(), &mut script)?;
    std::io::Write::write_all(&mut std::io::stdout(), &script)?;
    Ok(ExitCode::SUCCESS)
}

/// Completes names of machines.
pub(super) fn machines() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let machines = StateRoot::from_environment().map(|root| root.machines()).unwrap_or_default();
        machines.into_iter().map(|dir| CompletionCandidate::new(dir.name.to_string())).collect()
    })
}

/// Completes names of cells, of all machines.
pub(super) fn cells() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let machines = StateRoot::from_environment().map(|root| root.machines()).unwrap_or_default();
        let mut names: Vec<String> = machines.iter().flat_map(|dir| CellStore::of(dir).names()).collect();
        names.sort();
        names.dedup();
        names.into_iter().map(CompletionCandidate::new).collect()
    })
}

/// Completes names of volumes.
pub(super) fn volumes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let volumes = VolumeStore::from_environment().map(|store| store.list()).unwrap_or_default();
        volumes.into_iter().map(|volume| CompletionCandidate::new(volume.name.to_string())).collect()
    })
}

/// Completes names of cell images.
pub(super) fn images() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let names = ImageStore::from_environment().cell_images();
        names.into_iter().map(CompletionCandidate::new).collect()
    })
}

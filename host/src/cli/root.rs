//! The root file system of a Linux cell, and the program that it runs: `isola run --rootfs`.

use super::Failure;
use super::failure::USAGE;
use crate::manifest::Manifest;
use crate::output::Output;
use crate::output::progress::Progress;
use crate::root::RootSpec;
use crate::tmpfs::TmpfsSpec;
use crate::volume::{VolumeSource, VolumeSpec};
use clap::Args;
use isola_abi::volume::VolumeAccess;
use isola_root_image::{CommandLine, ProgramConfig, RootCache};
use std::env;

/// The image that runs Linux programs.
const IMAGE: &str = "linux";

#[derive(Debug, Args)]
pub(super) struct RootArguments {
    /// Runs a Linux program of this root file system: a folder, a tar archive (gzip, zstd, xz), an OCI image as
    /// oci:LAYOUT[:TAG], or a folder or volume of a service cell as NAME@CELL, with :rw to keep changes there
    #[arg(long, value_name = "ROOT")]
    pub rootfs: Option<RootSpec>,
    /// Replaces the entry point of an OCI image; "" removes it
    #[arg(long, value_name = "PROGRAM")]
    entrypoint: Option<String>,
    /// Sets an environment variable; NAME alone takes this command's
    #[arg(short, long = "env", value_name = "NAME=VALUE")]
    environment: Vec<String>,
    /// The working directory
    #[arg(short, long, value_name = "DIRECTORY")]
    workdir: Option<String>,
    /// The user, by name or number: names are those of the root file system
    #[arg(short, long, value_name = "USER[:GROUP]")]
    user: Option<String>,
    /// Mounts an empty file system in memory: PATH[:size=64M,mode=1777]
    #[arg(long, value_name = "PATH")]
    tmpfs: Vec<TmpfsSpec>,
    /// Prints each system call with its result
    #[arg(long)]
    trace: bool,
    /// Prints the system calls that programs asked for and did not get, at the end
    #[arg(long)]
    missing_calls: bool,
}

/// A Linux program, as a cell runs it.
pub(super) struct LinuxProgram {
    /// The image and its arguments.
    pub command: Vec<String>,
    /// The root file system.
    pub root: VolumeSpec,
}

impl RootArguments {
    /// Prepares the root file system, and returns the cell's image, arguments and volume; `None` if neither the command line
    /// nor the manifest names one. `command` is the program with its arguments.
    pub fn prepare(
        &self,
        output: &Output,
        command: &[String],
        manifest: &Manifest,
    ) -> Result<Option<LinuxProgram>, Failure> {
        let Some(source) = self.rootfs.as_ref().or(manifest.rootfs.as_ref()) else {
            return match self.first_option() {
                Some(option) => Err(Failure::new(
                    USAGE,
                    format!(
                        "{option} is for Linux programs: name their root file system with --rootfs, or in a manifest"
                    ),
                )),
                None => Ok(None),
            };
        };
        let (root, program) = match source {
            RootSpec::Image(source) => {
                let progress = Progress::waiting(output, "preparing the root file system");
                let image = RootCache::from_environment()?.image(source)?;
                drop(progress);
                ((VolumeSource::File(image.file), VolumeAccess::ReadOnly), image.program)
            }
            RootSpec::Served { name, cell, access } => {
                let source = VolumeSource::Served { name: name.clone(), cell: cell.clone() };
                ((source, *access), ProgramConfig::default())
            }
        };
        let program = program
            .with(self.line(command, manifest)?)
            .map_err(|error| Failure::new(USAGE, error.to_string()))?;
        let flags = [
            (self.trace || manifest.trace, "--trace"),
            (self.missing_calls || manifest.missing_calls, "--missing-calls"),
        ];
        let flags = flags.into_iter().filter(|(is_given, _)| *is_given).map(|(_, flag)| flag.to_owned());
        let tmpfs = if self.tmpfs.is_empty() { &manifest.tmpfs } else { &self.tmpfs };
        let tmpfs = tmpfs.iter().flat_map(|spec| ["--tmpfs".to_owned(), spec.to_string()]);
        let command = [IMAGE.to_owned()].into_iter().chain(flags).chain(tmpfs).chain(program.arguments());
        Ok(Some(LinuxProgram {
            command: command.collect(),
            root: VolumeSpec { source: root.0, path: "/".to_owned(), access: root.1 },
        }))
    }

    /// Returns the parts that concern the program: those of the command line before those of the manifest.
    fn line(&self, command: &[String], manifest: &Manifest) -> Result<CommandLine, Failure> {
        Ok(CommandLine {
            entrypoint: self.entrypoint.clone().or_else(|| manifest.entrypoint.clone()),
            command: if command.is_empty() { manifest.command.clone() } else { command.to_vec() },
            environment: environment(&[&manifest.env[..], &self.environment].concat())?,
            directory: self.workdir.clone().or_else(|| manifest.workdir.clone()),
            user: self.user.clone().or_else(|| manifest.user.clone()),
        })
    }

    /// Returns an option that was given and needs a root file system.
    fn first_option(&self) -> Option<&'static str> {
        let given = [
            (self.entrypoint.is_some(), "--entrypoint"),
            (!self.environment.is_empty(), "--env"),
            (self.workdir.is_some(), "--workdir"),
            (self.user.is_some(), "--user"),
            (!self.tmpfs.is_empty(), "--tmpfs"),
            (self.trace, "--trace"),
            (self.missing_calls, "--missing-calls"),
        ];
        given.into_iter().find_map(|(is_given, option)| is_given.then_some(option))
    }
}

/// Returns variables with their values: those without one are this process's, and left out if it has none.
pub(super) fn environment(variables: &[String]) -> Result<Vec<String>, Failure> {
    let mut all = Vec::new();
    for variable in variables {
        let name = variable.split_once('=').map_or(variable.as_str(), |(name, _)| name);
        if name.is_empty() {
            return Err(Failure::new(USAGE, format!("-e {variable} is not NAME=VALUE")));
        }
        if name.len() < variable.len() {
            all.push(variable.clone());
        } else if let Some(value) = env::var_os(name) {
            all.push(format!("{name}={}", value.to_string_lossy()));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        root: RootArguments,
    }

    #[test]
    fn options_come_before_the_keys_of_a_manifest() {
        let manifest = Manifest {
            command: vec!["serve".into()],
            env: vec!["MODE=slow".into(), "KEEP=1".into()],
            user: Some("www".into()),
            workdir: Some("/srv".into()),
            ..Manifest::default()
        };
        let line = |options: &[&str], command: &[&str]| {
            let root = Line::parse_from([&["run"], options].concat()).root;
            let command: Vec<String> = command.iter().map(ToString::to_string).collect();
            let line = root.line(&command, &manifest).unwrap();
            ProgramConfig::default().with(line).unwrap().arguments().join(" ")
        };
        assert_eq!(line(&[], &[]), "-e MODE=slow -e KEEP=1 -w /srv -u www -- serve");
        let options = ["-e", "MODE=fast", "-w", "/", "-u", "me:us"];
        assert_eq!(line(&options, &["sh", "-i"]), "-e MODE=fast -e KEEP=1 -w / -u me:us -- sh -i");
    }

    #[test]
    fn options_without_a_root_file_system_are_refused_by_name() {
        for (options, name) in [
            (&["-e", "A=b"][..], "--env"),
            (&["-u", "me"], "--user"),
            (&["--tmpfs", "/run"], "--tmpfs"),
            (&["--trace"], "--trace"),
            (&["--missing-calls"], "--missing-calls"),
            (&["-w", "/"], "--workdir"),
            (&["--entrypoint", "sh"], "--entrypoint"),
        ] {
            assert_eq!(Line::parse_from([&["run"], options].concat()).root.first_option(), Some(name));
        }
        assert_eq!(Line::parse_from(["run"]).root.first_option(), None);
    }

    #[test]
    fn variables_have_names() {
        let of = |texts: &[&str]| environment(&texts.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(of(&["A=", "B=c=d", "ISOLA_NO_SUCH_VARIABLE"]).unwrap(), ["A=", "B=c=d"]);
        let path = of(&["PATH"]).unwrap();
        assert!(path[0].starts_with("PATH=/"), "{path:?}");
        assert!(of(&["=x"]).is_err() && of(&[""]).is_err());
    }
}

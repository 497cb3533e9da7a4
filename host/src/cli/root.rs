//! The root file system of a Linux cell, and the program that it runs: `isola run --rootfs`.

use super::Failure;
use super::failure::USAGE;
use crate::output::Output;
use crate::output::progress::Progress;
use crate::volume::{VolumeSource, VolumeSpec};
use clap::Args;
use isola_abi::size::ByteSize;
use isola_abi::volume::{VolumeAccess, is_mount_path};
use isola_root_image::{CommandLine, RootCache, RootSource};
use std::env;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The image that runs Linux programs.
const IMAGE: &str = "linux";

/// The most permission bits.
const MOST_MODE: u32 = 0o7777;

#[derive(Debug, Args)]
pub(super) struct RootArguments {
    /// Runs a Linux program of this root file system: a folder, a tar archive (gzip, zstd, xz), or an OCI image as
    /// oci:LAYOUT[:TAG]
    #[arg(long, value_name = "ROOT", conflicts_with = "hosted")]
    pub rootfs: Option<RootSource>,
    /// Replaces the entry point of an OCI image; "" removes it
    #[arg(long, value_name = "PROGRAM", requires = "rootfs")]
    entrypoint: Option<String>,
    /// Sets an environment variable; NAME alone takes this command's
    #[arg(short, long = "env", value_name = "NAME=VALUE", requires = "rootfs")]
    environment: Vec<String>,
    /// The working directory
    #[arg(short, long, value_name = "DIRECTORY", requires = "rootfs")]
    workdir: Option<String>,
    /// The user, by name or number: names are those of the root file system
    #[arg(short, long, value_name = "USER[:GROUP]", requires = "rootfs")]
    user: Option<String>,
    /// Mounts an empty file system in memory: PATH[:size=64M,mode=1777]
    #[arg(long, value_name = "PATH", requires = "rootfs")]
    tmpfs: Vec<TmpfsSpec>,
    /// Prints each system call with its result
    #[arg(long, requires = "rootfs")]
    trace: bool,
    /// Prints the system calls that programs asked for and did not get, at the end
    #[arg(long, requires = "rootfs")]
    missing_calls: bool,
}

/// A file system in memory: `PATH[:OPTION,OPTION]`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TmpfsSpec {
    path: String,
    size: Option<ByteSize>,
    mode: Option<u32>,
}

/// The error for a text that is no file system in memory.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
enum TmpfsError {
    #[error(
        "a file system in memory cannot be mounted at {0:?}: write an absolute path without `.` and `..`"
    )]
    Path(String),
    #[error("{0:?} is no option of --tmpfs: write size=64M or mode=1777")]
    Option(String),
}

impl FromStr for TmpfsSpec {
    type Err = TmpfsError;

    fn from_str(text: &str) -> Result<Self, TmpfsError> {
        let (path, options) = text.split_once(':').unwrap_or((text, ""));
        if !is_mount_path(path) || path == "/" {
            return Err(TmpfsError::Path(path.to_owned()));
        }
        let mut spec = Self { path: path.to_owned(), size: None, mode: None };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let unknown = || TmpfsError::Option(option.to_owned());
            match option.split_once('=') {
                Some(("size", size)) => {
                    spec.size = Some(size.parse().map_err(|_| unknown())?);
                }
                Some(("mode", mode)) => {
                    let mode = u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= MOST_MODE);
                    spec.mode = Some(mode.ok_or_else(unknown)?);
                }
                _ => return Err(unknown()),
            }
        }
        Ok(spec)
    }
}

/// The form that the image `linux` reads.
impl fmt::Display for TmpfsSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        let size = self.size.map(|size| format!("size={}", size.0));
        let mode = self.mode.map(|mode| format!("mode={mode:o}"));
        let options: Vec<String> = size.into_iter().chain(mode).collect();
        if options.is_empty() { Ok(()) } else { write!(f, ":{}", options.join(",")) }
    }
}

/// A Linux program, as a cell runs it.
pub(super) struct LinuxProgram {
    /// The image and its arguments.
    pub command: Vec<String>,
    /// The root file system.
    pub root: VolumeSpec,
}

impl RootArguments {
    /// Prepares the root file system, and returns the cell's image, arguments and volume; `None` without `--rootfs`.
    /// `command` is the program with its arguments.
    pub fn prepare(&self, output: &Output, command: &[String]) -> Result<Option<LinuxProgram>, Failure> {
        let Some(source) = &self.rootfs else { return Ok(None) };
        let progress = Progress::waiting(output, "preparing the root file system");
        let image = RootCache::from_environment()?.image(source)?;
        drop(progress);
        let line = CommandLine {
            entrypoint: self.entrypoint.clone(),
            command: command.to_vec(),
            environment: environment(&self.environment)?,
            directory: self.workdir.clone(),
            user: self.user.clone(),
        };
        let program = image.program.with(line).map_err(|error| Failure::new(USAGE, error.to_string()))?;
        let flags = [(self.trace, "--trace"), (self.missing_calls, "--missing-calls")];
        let flags = flags.into_iter().filter(|(is_given, _)| *is_given).map(|(_, flag)| flag.to_owned());
        let tmpfs = self.tmpfs.iter().flat_map(|spec| ["--tmpfs".to_owned(), spec.to_string()]);
        let command = [IMAGE.to_owned()].into_iter().chain(flags).chain(tmpfs).chain(program.arguments());
        Ok(Some(LinuxProgram {
            command: command.collect(),
            root: VolumeSpec {
                source: VolumeSource::File(image.file),
                path: "/".to_owned(),
                access: VolumeAccess::ReadOnly,
            },
        }))
    }
}

/// Returns variables with their values: those without one are this process's, and left out if it has none.
fn environment(variables: &[String]) -> Result<Vec<String>, Failure> {
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

    #[test]
    fn a_file_system_in_memory_has_a_path_and_options() {
        let parse = |text: &str| text.parse::<TmpfsSpec>().map(|spec| spec.to_string());
        assert_eq!(parse("/run").unwrap(), "/run");
        assert_eq!(parse("/run:size=64m,mode=755").unwrap(), "/run:size=67108864,mode=755");
        for bad in ["run", "/", "/a/../b"] {
            assert!(matches!(parse(bad), Err(TmpfsError::Path(_))), "{bad}");
        }
        for bad in ["/run:size", "/run:size=x", "/run:mode=9", "/run:mode=77777", "/run:noexec"] {
            assert!(matches!(parse(bad), Err(TmpfsError::Option(_))), "{bad}");
        }
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

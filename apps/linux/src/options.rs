//! The image's arguments.

use crate::TmpfsMount;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// The usage line.
pub const USAGE: &str = "usage: linux [--trace] [--missing-calls] [-e NAME=VALUE]... [-w DIRECTORY] \
                         [-u USER[:GROUP]] [--tmpfs PATH[:size=BYTES,mode=OCTAL]]... PROGRAM [ARGUMENT]...";

/// The environment of a program without options, as containers have it.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The program to run, and its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Print calls.
    pub traces: bool,
    /// Print the calls that do not exist and that programs made, at the end.
    pub shows_missing: bool,
    /// The environment: `NAME=VALUE`.
    pub environment: Vec<String>,
    /// The working directory.
    pub directory: String,
    /// The user, and the group: names or numbers.
    pub user: String,
    /// File systems in memory.
    pub tmpfs: Vec<TmpfsMount>,
    /// The program and its arguments.
    pub command: Vec<String>,
}

impl Options {
    /// Parses the arguments.
    ///
    /// # Errors
    /// A text about the mistake.
    pub fn parse<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut arguments = arguments.into_iter();
        let mut options = Self {
            traces: false,
            shows_missing: false,
            environment: Vec::new(),
            directory: "/".into(),
            user: String::new(),
            tmpfs: Vec::new(),
            command: Vec::new(),
        };
        loop {
            let Some(argument) = arguments.next() else { return Err("the program is missing".into()) };
            let mut value = || arguments.next().ok_or_else(|| alloc::format!("{argument} needs a value"));
            match argument {
                "--trace" => options.traces = true,
                "--missing-calls" => options.shows_missing = true,
                "-e" => {
                    let variable = value()?;
                    if !variable.contains('=') || variable.starts_with('=') {
                        return Err(alloc::format!("-e {variable} is not NAME=VALUE"));
                    }
                    options.environment.push(variable.to_string());
                }
                "-w" => options.directory = value()?.to_string(),
                "-u" => options.user = value()?.to_string(),
                "--tmpfs" => options.tmpfs.push(TmpfsMount::parse(value()?)?),
                "--" => options.command.extend(arguments.next().map(ToString::to_string)),
                option if option.starts_with('-') => {
                    return Err(alloc::format!("{option} is no option"));
                }
                program => options.command.push(program.to_string()),
            }
            if !options.command.is_empty() {
                options.command.extend(arguments.map(ToString::to_string));
                options.add_default(PATH);
                return Ok(options);
            }
        }
    }

    /// Adds a variable that every program expects, unless it is set.
    pub fn add_default(&mut self, default: &str) {
        let (name, _) = default.split_once('=').unwrap_or((default, ""));
        let has = |variable: &String| variable.split_once('=').is_some_and(|(other, _)| other == name);
        if !self.environment.iter().any(has) {
            self.environment.push(default.into());
        }
    }

    /// Returns the paths at which the program may be, in their order: the command itself if it has a slash, otherwise
    /// those of `PATH`.
    pub fn candidates(&self) -> Vec<String> {
        let Some(program) = self.command.first() else { return Vec::new() };
        if program.contains('/') {
            return alloc::vec![program.clone()];
        }
        let path = self.environment.iter().find_map(|variable| variable.strip_prefix("PATH="));
        path.unwrap_or_default().split(':').map(|folder| alloc::format!("{folder}/{program}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_end_at_the_program() {
        let options =
            Options::parse(["-e", "A=b=c", "--trace", "-w", "/tmp", "-u", "5:6", "sh", "-c", "x"]).unwrap();
        assert!(options.traces && !options.shows_missing);
        assert_eq!((options.user.as_str(), options.directory.as_str()), ("5:6", "/tmp"));
        assert_eq!(options.command, ["sh", "-c", "x"]);
        assert_eq!(options.environment, ["A=b=c", PATH]);
        assert_eq!(options.candidates()[5], "/bin/sh");
        let mut direct =
            Options::parse(["-e", "PATH=/a", "--tmpfs", "/run:size=8192,mode=700", "--", "/b/c", "--trace"])
                .unwrap();
        direct.add_default("HOME=/root");
        direct.add_default("PATH=/b");
        let run = TmpfsMount { path: "/run".into(), len_bytes: Some(8192), permissions: 0o700 };
        assert_eq!(direct.tmpfs, [run]);
        assert_eq!((direct.candidates(), direct.traces), (alloc::vec!["/b/c".into()], false));
        assert_eq!(direct.environment, ["PATH=/a", "HOME=/root"]);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |arguments: &[&str]| Options::parse(arguments.iter().copied()).unwrap_err();
        assert_eq!(error(&[]), "the program is missing");
        assert_eq!(error(&["--trace", "--"]), "the program is missing");
        assert_eq!(error(&["-e"]), "-e needs a value");
        assert_eq!(error(&["-e", "=x", "sh"]), "-e =x is not NAME=VALUE");
        for bad in ["run", "/", "/run:size=x", "/run:mode=8", "/run:exec"] {
            assert!(error(&["--tmpfs", bad, "sh"]).contains("is not PATH"), "{bad}");
        }
        assert_eq!(error(&["--nope", "sh"]), "--nope is no option");
    }
}

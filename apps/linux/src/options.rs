//! The image's arguments.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use isola_abi::session::CommandSpec;

/// The usage line.
pub const USAGE: &str = "usage: linux [-i] [-t] [--trace] [--missing-calls] [-e NAME=VALUE]... [-w DIRECTORY] \
                         [-u USER[:GROUP]] PROGRAM [ARGUMENT]...";

/// The environment of a program without options, as containers have it.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The program to run, and its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Standard input and output are those of the session that attaches.
    pub attaches: bool,
    /// They are a terminal.
    pub has_terminal: bool,
    /// Print calls.
    pub traces: bool,
    /// Print the calls that do not exist and that programs made, at the end.
    pub shows_missing: bool,
    /// The environment: `NAME=VALUE`.
    pub environment: Vec<String>,
    /// The working directory.
    pub directory: String,
    /// The user's id.
    pub user: u32,
    /// The group's id.
    pub group: u32,
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
            attaches: false,
            has_terminal: false,
            traces: false,
            shows_missing: false,
            environment: Vec::new(),
            directory: "/".into(),
            user: 0,
            group: 0,
            command: Vec::new(),
        };
        loop {
            let Some(argument) = arguments.next() else { return Err("the program is missing".into()) };
            let mut value = || arguments.next().ok_or_else(|| alloc::format!("{argument} needs a value"));
            match argument {
                "-i" => options.attaches = true,
                "-t" => (options.attaches, options.has_terminal) = (true, true),
                "-it" | "-ti" => (options.attaches, options.has_terminal) = (true, true),
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
                "-u" => {
                    let ids = value()?;
                    let (user, group) = ids.split_once(':').unwrap_or((ids, "0"));
                    let id = |text: &str| {
                        text.parse().map_err(|_| alloc::format!("-u {ids} is not USER[:GROUP] with numbers"))
                    };
                    (options.user, options.group) = (id(user)?, id(group)?);
                }
                "--" => options.command.extend(arguments.next().map(ToString::to_string)),
                option if option.starts_with('-') => {
                    return Err(alloc::format!("{option} is no option"));
                }
                program => options.command.push(program.to_string()),
            }
            if !options.command.is_empty() {
                options.command.extend(arguments.map(ToString::to_string));
                options.add_defaults();
                return Ok(options);
            }
        }
    }

    /// Adds the variables that every program expects.
    fn add_defaults(&mut self) {
        if self.has_terminal {
            self.add_default("TERM=xterm");
        }
        for default in [PATH, if self.user == 0 { "HOME=/root" } else { "HOME=/" }] {
            self.add_default(default);
        }
    }

    fn add_default(&mut self, default: &str) {
        let (name, _) = default.split_once('=').unwrap_or((default, ""));
        let has = |variable: &String| variable.split_once('=').is_some_and(|(other, _)| other == name);
        if !self.environment.iter().any(has) {
            self.environment.push(default.into());
        }
    }

    /// Returns the options of a command beside the program. What it does not say is as for the program.
    pub fn of_command(&self, command: &CommandSpec) -> Self {
        let name = |variable: &str| variable.split_once('=').map_or(variable, |(name, _)| name).to_string();
        let replaced: Vec<String> = command.environment.iter().map(|variable| name(variable)).collect();
        let kept = self.environment.iter().filter(|variable| !replaced.contains(&name(variable))).cloned();
        let mut environment: Vec<String> = kept.collect();
        environment.extend(command.environment.iter().cloned());
        let (user, group) = command.user.unwrap_or((self.user, self.group));
        let mut options = Self {
            environment,
            directory: command.directory.clone().unwrap_or_else(|| self.directory.clone()),
            user,
            group,
            has_terminal: command.terminal.is_some(),
            command: command.arguments.clone(),
            ..self.clone()
        };
        options.add_defaults();
        options
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
    use alloc::vec;

    #[test]
    fn options_end_at_the_program() {
        let options =
            Options::parse(["-e", "A=b=c", "--trace", "-w", "/tmp", "-u", "5:6", "sh", "-c", "x"]).unwrap();
        assert!(options.traces && !options.shows_missing);
        assert_eq!((options.user, options.group, options.directory.as_str()), (5, 6, "/tmp"));
        assert_eq!(options.command, ["sh", "-c", "x"]);
        assert_eq!(options.environment, ["A=b=c", PATH, "HOME=/"]);
        assert_eq!(options.candidates()[5], "/bin/sh");
        let direct = Options::parse(["-e", "PATH=/a", "--", "/b/c", "--trace"]).unwrap();
        assert_eq!((direct.candidates(), direct.traces), (alloc::vec!["/b/c".into()], false));
        assert_eq!(direct.environment, ["PATH=/a", "HOME=/root"]);
    }

    #[test]
    fn a_command_has_what_it_says_and_the_rest_of_the_program() {
        let program = Options::parse(["-it", "-e", "A=1", "-e", "B=2", "-w", "/tmp", "sh"]).unwrap();
        assert!(program.attaches && program.has_terminal);
        assert!(program.environment.contains(&"TERM=xterm".into()));
        let spec = CommandSpec {
            arguments: vec!["ls".into()],
            environment: vec!["A=3".into()],
            user: Some((7, 8)),
            ..CommandSpec::default()
        };
        let command = program.of_command(&spec);
        assert_eq!(command.environment.iter().filter(|variable| variable.starts_with("A=")).count(), 1);
        assert!(command.environment.contains(&"A=3".into()) && command.environment.contains(&"B=2".into()));
        assert_eq!((command.directory.as_str(), command.user, command.group), ("/tmp", 7, 8));
        assert_eq!(command.command, ["ls"]);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |arguments: &[&str]| Options::parse(arguments.iter().copied()).unwrap_err();
        assert_eq!(error(&[]), "the program is missing");
        assert_eq!(error(&["--trace", "--"]), "the program is missing");
        assert_eq!(error(&["-e"]), "-e needs a value");
        assert_eq!(error(&["-e", "=x", "sh"]), "-e =x is not NAME=VALUE");
        assert_eq!(error(&["-u", "me", "sh"]), "-u me is not USER[:GROUP] with numbers");
        assert_eq!(error(&["--nope", "sh"]), "--nope is no option");
    }
}

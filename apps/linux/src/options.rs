//! The image's arguments.

use crate::{TmpfsMount, User};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use isola_abi::session::CommandSpec;

/// The usage line.
pub const USAGE: &str = "usage: linux [-i] [-t] [--trace] [--missing-calls] [-e NAME=VALUE]... [-w DIRECTORY] \
                         [-u USER[:GROUP]] [--tmpfs PATH[:size=BYTES,mode=OCTAL]]... PROGRAM [ARGUMENT]...";

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
    /// The variables of the environment that the options named.
    named_variables: Vec<String>,
    /// The working directory.
    pub directory: String,
    /// The user, and the group: names or numbers.
    pub user: String,
    /// That user, after [`Self::set_identity`]; root before.
    pub identity: User,
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
            attaches: false,
            has_terminal: false,
            traces: false,
            shows_missing: false,
            environment: Vec::new(),
            named_variables: Vec::new(),
            directory: "/".into(),
            user: String::new(),
            identity: User { user: 0, group: 0, groups: Vec::new(), home: None },
            tmpfs: Vec::new(),
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
                options.named_variables.clone_from(&options.environment);
                return Ok(options);
            }
        }
    }

    /// Sets the user that [`Self::user`] names, and the variables that every program expects, unless they are set.
    pub fn set_identity(&mut self, identity: User) {
        let home = identity.home.as_deref().unwrap_or(if identity.user == 0 { "/root" } else { "/" });
        self.add_default(PATH);
        self.add_default(&alloc::format!("HOME={home}"));
        if self.has_terminal {
            self.add_default("TERM=xterm");
        }
        self.identity = identity;
    }

    fn add_default(&mut self, default: &str) {
        let (name, _) = default.split_once('=').unwrap_or((default, ""));
        let has = |variable: &String| variable.split_once('=').is_some_and(|(other, _)| other == name);
        if !self.environment.iter().any(has) {
            self.environment.push(default.into());
        }
    }

    /// Returns the options of a command beside the program, whose user is `identity`. What it does not say is as for the
    /// program.
    pub fn of_command(&self, command: &CommandSpec, identity: User) -> Self {
        let name = |variable: &str| variable.split_once('=').map_or(variable, |(name, _)| name).to_string();
        let replaced: Vec<String> = command.environment.iter().map(|variable| name(variable)).collect();
        let kept =
            self.named_variables.iter().filter(|variable| !replaced.contains(&name(variable))).cloned();
        let mut environment: Vec<String> = kept.collect();
        environment.extend(command.environment.iter().cloned());
        let mut options = Self {
            named_variables: environment.clone(),
            environment,
            directory: command.directory.clone().unwrap_or_else(|| self.directory.clone()),
            has_terminal: command.terminal.is_some(),
            command: command.arguments.clone(),
            ..self.clone()
        };
        options.set_identity(identity);
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
        let root = || User { user: 0, group: 0, groups: Vec::new(), home: None };
        let mut options =
            Options::parse(["-e", "A=b=c", "--trace", "-w", "/tmp", "-u", "5:6", "sh", "-c", "x"]).unwrap();
        assert!(options.traces && !options.shows_missing);
        assert_eq!((options.user.as_str(), options.directory.as_str()), ("5:6", "/tmp"));
        assert_eq!(options.command, ["sh", "-c", "x"]);
        options.set_identity(User { user: 5, group: 6, groups: Vec::new(), home: Some("/home/five".into()) });
        assert_eq!(options.environment, ["A=b=c", PATH, "HOME=/home/five"]);
        assert_eq!(options.candidates()[5], "/bin/sh");
        let mut direct =
            Options::parse(["-e", "PATH=/a", "--tmpfs", "/run:size=8192,mode=700", "--", "/b/c", "--trace"])
                .unwrap();
        direct.set_identity(root());
        let run = TmpfsMount { path: "/run".into(), len_bytes: Some(8192), permissions: 0o700 };
        assert_eq!(direct.tmpfs, [run]);
        assert_eq!((direct.candidates(), direct.traces), (alloc::vec!["/b/c".into()], false));
        assert_eq!(direct.environment, ["PATH=/a", "HOME=/root"]);
    }

    #[test]
    fn a_command_has_what_it_says_and_the_rest_of_the_program() {
        let mut program = Options::parse(["-it", "-e", "A=1", "-e", "B=2", "-w", "/tmp", "sh"]).unwrap();
        assert!(program.attaches && program.has_terminal);
        program.set_identity(User { user: 1, group: 2, groups: vec![3], home: Some("/home/one".into()) });
        assert!(program.environment.contains(&"TERM=xterm".into()));
        let spec = CommandSpec {
            arguments: vec!["ls".into()],
            environment: vec!["A=3".into()],
            ..CommandSpec::default()
        };
        let seven = User { user: 7, group: 8, groups: Vec::new(), home: Some("/home/seven".into()) };
        let command = program.of_command(&spec, seven);
        assert_eq!(command.environment.iter().filter(|variable| variable.starts_with("A=")).count(), 1);
        assert!(command.environment.contains(&"A=3".into()) && command.environment.contains(&"B=2".into()));
        // The home directory is that of the command's user, and a command without a terminal has no TERM.
        assert!(command.environment.contains(&"HOME=/home/seven".into()));
        assert!(!command.environment.iter().any(|variable| variable.starts_with("TERM=")));
        assert_eq!(
            (command.directory.as_str(), command.identity.user, command.identity.group),
            ("/tmp", 7, 8)
        );
        assert!(command.identity.groups.is_empty());
        let plain = program.of_command(&CommandSpec::default(), program.identity.clone());
        assert_eq!((&plain.identity, &plain.directory), (&program.identity, &program.directory));
        assert!(plain.environment.contains(&"HOME=/home/one".into()));
        assert_eq!(command.command, ["ls"]);
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

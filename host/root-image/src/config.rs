//! The program of an image, and a command line that overrides it as Docker's does.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The program of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramConfig {
    /// The program with its first arguments.
    pub entrypoint: Vec<String>,
    /// The arguments behind them, or the program if there is no entry point.
    pub command: Vec<String>,
    /// The environment: `NAME=VALUE`.
    pub environment: Vec<String>,
    /// The working directory; empty for the root.
    pub directory: String,
    /// The user: `USER[:GROUP]`, names or numbers; empty for root.
    pub user: String,
}

/// The parts of a command line that concern the program.
#[derive(Clone, Debug, Default)]
pub struct CommandLine {
    /// Replaces the image's entry point; an empty one removes it.
    pub entrypoint: Option<String>,
    /// Replaces the image's command.
    pub command: Vec<String>,
    /// Variables, `NAME=VALUE`, each in place of the image's with that name.
    pub environment: Vec<String>,
    /// The working directory.
    pub directory: Option<String>,
    /// The user.
    pub user: Option<String>,
}

/// The error for an image without a program.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("neither the image nor the command line names a program: write it at the end, after --")]
pub struct NoProgram;

impl ProgramConfig {
    /// Returns the configuration with a command line.
    ///
    /// # Errors
    /// [`NoProgram`].
    pub fn with(mut self, line: CommandLine) -> Result<Self, NoProgram> {
        if let Some(entrypoint) = line.entrypoint {
            // The image's command is for the image's entry point.
            self.command.clear();
            self.entrypoint = if entrypoint.is_empty() { Vec::new() } else { vec![entrypoint] };
        }
        if !line.command.is_empty() {
            self.command = line.command;
        }
        if self.entrypoint.is_empty() && self.command.is_empty() {
            return Err(NoProgram);
        }
        for variable in line.environment {
            let name =
                |variable: &str| variable.split_once('=').map_or(variable.len(), |(name, _)| name.len());
            let same = |other: &&mut String| other[..name(other)] == variable[..name(&variable)];
            match self.environment.iter_mut().find(same) {
                Some(other) => *other = variable,
                None => self.environment.push(variable),
            }
        }
        self.directory = line.directory.unwrap_or(self.directory);
        self.user = line.user.unwrap_or(self.user);
        Ok(self)
    }

    /// Returns the arguments of the image `linux` that start the program.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        for variable in &self.environment {
            arguments.extend(["-e".to_owned(), variable.clone()]);
        }
        for (option, value) in [("-w", &self.directory), ("-u", &self.user)] {
            if !value.is_empty() {
                arguments.extend([option.to_owned(), value.clone()]);
            }
        }
        arguments.push("--".to_owned());
        arguments.extend(self.entrypoint.iter().chain(&self.command).cloned());
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    fn image() -> ProgramConfig {
        ProgramConfig {
            entrypoint: texts(&["/entry", "--now"]),
            command: texts(&["serve"]),
            environment: texts(&["PATH=/bin", "MODE=slow"]),
            directory: "/srv".into(),
            user: "web".into(),
        }
    }

    #[test]
    fn the_image_s_configuration_holds_without_options() {
        let arguments = image().with(CommandLine::default()).unwrap().arguments();
        let expected = "-e PATH=/bin -e MODE=slow -w /srv -u web -- /entry --now serve";
        assert_eq!(arguments.join(" "), expected);
    }

    #[test]
    fn the_command_line_overrides_it() {
        let line = CommandLine {
            command: texts(&["check", "-v"]),
            environment: texts(&["MODE=fast", "MODES=2"]),
            directory: Some("/".into()),
            user: Some("0:5".into()),
            ..CommandLine::default()
        };
        let arguments = image().with(line).unwrap().arguments();
        let expected = "-e PATH=/bin -e MODE=fast -e MODES=2 -w / -u 0:5 -- /entry --now check -v";
        assert_eq!(arguments.join(" "), expected);
    }

    #[test]
    fn an_entry_point_of_the_command_line_takes_no_command_of_the_image() {
        let with = |entrypoint: &str, command: &[&str]| {
            let line = CommandLine {
                entrypoint: Some(entrypoint.into()),
                command: texts(command),
                ..CommandLine::default()
            };
            image().with(line).map(|config| [config.entrypoint, config.command].concat())
        };
        assert_eq!(with("/bin/sh", &[]).unwrap(), ["/bin/sh"]);
        assert_eq!(with("/bin/sh", &["-c", "x"]).unwrap(), ["/bin/sh", "-c", "x"]);
        assert_eq!(with("", &["ls"]).unwrap(), ["ls"]);
        assert_eq!(with("", &[]), Err(NoProgram));
        assert_eq!(ProgramConfig::default().with(CommandLine::default()), Err(NoProgram));
    }
}

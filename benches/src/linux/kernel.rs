//! The choice of the Linux guest's kernel.

use crate::error::BenchError;
use crate::program;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// The Linux guest's kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kernel {
    /// The kernel of the host's Debian release
    #[default]
    Stable,
    /// The newer kernel of the release's backports
    Backports,
}

impl Kernel {
    /// All kernels.
    pub const ALL: [Self; 2] = [Self::Stable, Self::Backports];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Backports => "backports",
        }
    }

    /// Returns the suffix of the group's name in names of files.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Stable => "",
            Self::Backports => "-backports",
        }
    }

    /// Returns whether it is the kernel of the host's release.
    pub fn is_stable(&self) -> bool {
        *self == Self::Stable
    }

    /// Returns the options with which apt finds the kernel. For backports, fetches package lists into `cache` and names
    /// them, so that the host's own lists are unchanged.
    ///
    /// # Errors
    /// [`BenchError::Program`] if apt fails or the host has no Debian archive; [`BenchError::File`].
    pub(super) fn apt_options(self, cache: &Path) -> Result<Vec<String>, BenchError> {
        if self.is_stable() {
            return Ok(Vec::new());
        }
        let format = "$(REPO_URI) $(CODENAME) $(COMPONENT)";
        let shown = program::run("apt-get", &["indextargets", "--format", format, "Created-By: Packages"])?;
        let source = source_of_backports(&shown).ok_or_else(|| BenchError::Program {
            line: "apt-get indextargets".into(),
            output: "no archive of a Debian release with a component main; --kernel backports needs one"
                .into(),
        })?;
        let lists = cache.join("lists");
        let list = cache.join("backports.list");
        fs::create_dir_all(lists.join("partial")).map_err(BenchError::file(&lists))?;
        fs::write(&list, source).map_err(BenchError::file(&list))?;
        let options = vec![
            format!("--option=Dir::State::lists={}", lists.display()),
            format!("--option=Dir::Etc::sourcelist={}", list.display()),
            "--option=Dir::Etc::sourceparts=-".into(),
        ];
        let mut update: Vec<&str> = options.iter().map(String::as_str).collect();
        update.extend(["update", "--quiet"]);
        program::run("apt-get", &update)?;
        Ok(options)
    }
}

/// Returns the sources.list line of the backports for the first Debian release in `sources`, which has a line
/// `URI RELEASE COMPONENT` for each of the host's sources. apt verifies the archive with the Debian keys that every
/// Debian system trusts.
fn source_of_backports(sources: &str) -> Option<String> {
    sources.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (uri, release, component) = (words.next()?, words.next()?, words.next()?);
        // Additional archives, such as security updates, have a dash in their names.
        let is_release = component == "main" && !release.contains('-');
        is_release.then(|| format!("deb {uri} {release}-backports main\n"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backports_are_those_of_the_release() {
        let sources = "\
http://a.example/security/ bookworm-security main
http://a.example/debian/ bookworm contrib
http://a.example/debian/ bookworm main
";
        let line = "deb http://a.example/debian/ bookworm-backports main\n";
        assert_eq!(source_of_backports(sources).as_deref(), Some(line));
        let line = "deb http://b.example/ trixie-backports main\n";
        assert_eq!(source_of_backports("http://b.example/ trixie main\n").as_deref(), Some(line));
        assert_eq!(source_of_backports("http://b.example/ trixie-updates main\n"), None);
        assert_eq!(source_of_backports(""), None);
    }
}

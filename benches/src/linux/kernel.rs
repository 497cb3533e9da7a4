//! Which of Debian's kernels the Linux guest has.

use crate::error::BenchError;
use crate::program;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// The Linux guest's kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kernel {
    /// That of the host's Debian release
    #[default]
    Stable,
    /// The newer one of the release's backports
    Backports,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Stable, Self::Backports];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Backports => "backports",
        }
    }

    /// What `GROUP` is continued by in names of files.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Stable => "",
            Self::Backports => "-backports",
        }
    }

    /// Whether it is the host's own release's.
    pub fn is_stable(&self) -> bool {
        *self == Self::Stable
    }

    /// Options of apt with which it finds the kernel. Those of backports leave the host's own lists alone: they name lists in
    /// `cache`, which are fetched.
    ///
    /// # Errors
    /// What apt says, or [`BenchError::Program`] on a host without Debian's archive.
    pub(super) fn apt_options(self, cache: &Path) -> Result<Vec<String>, BenchError> {
        if self.is_stable() {
            return Ok(Vec::new());
        }
        let format = "$(REPO_URI) $(CODENAME) $(COMPONENT)";
        let shown = program::run("apt-get", &["indextargets", "--format", format, "Created-By: Packages"])?;
        let source = source_of_backports(&shown).ok_or_else(|| BenchError::Program {
            line: "apt-get indextargets".into(),
            said: "no archive of a Debian release with a component main; --kernel backports needs one".into(),
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

/// The line for apt that names the backports of the first Debian release among the host's sources: of `URI RELEASE
/// COMPONENT`, a line each. apt checks it with the keys of Debian that every Debian system trusts.
fn source_of_backports(sources: &str) -> Option<String> {
    sources.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (uri, release, component) = (words.next()?, words.next()?, words.next()?);
        // Archives beside the release's own have a name with a dash.
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

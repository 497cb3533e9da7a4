//! Text in the tree: links in documents resolve, crates begin with a description, and there is no stray white space.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Parser, Tag, TagEnd};

use super::{Check, Findings};
use crate::error::Error;
use crate::workspace::{self, Workspace};

pub const CHECK: Check = Check {
    name: "text",
    about: "links in documents resolve; crates begin with a description; no stray white space",
    remedy: "correct the link, add a //! description, or remove the named white space",
    run,
};

/// The extensions of text files; a file without an extension counts if it is valid UTF-8.
const TEXT: &[&str] = &["md", "rs", "toml", "sh", "s", "S", "ld", "yml"];

/// Third-party files, whose white space is left as it is.
const VERBATIM: &[&str] = &["LICENSE", "LICENSE-APACHE", "LICENSE-MIT", "Cargo.lock"];

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let mut failures = Vec::new();
    let files = workspace.files()?;
    let mut documents = BTreeMap::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|end| end == "md")) {
        documents.insert(path.clone(), Document::parse(&workspace::read(path)?));
    }
    for (path, document) in &documents {
        let broken = document.links.iter().filter_map(|link| broken(path, link, &documents));
        failures.extend(broken.map(|why| format!("{}: {why}", workspace.relative(path))));
    }
    failures.extend(
        unlisted(&workspace.root().join("docs"), &documents)
            .map(|path| format!("{}: is not listed in docs/README.md", workspace.relative(path))),
    );
    for path in files.iter().filter(|path| is_text(path)) {
        failures.extend(stray_space(&workspace.relative(path), &workspace::read(path)?));
    }
    for target in workspace.members().iter().flat_map(|package| &package.targets) {
        let path = target.src_path.as_std_path();
        let is_root = target.is_lib() || target.is_bin() || target.is_proc_macro();
        if is_root && !opens_with_what_it_is(&workspace::read(path)?) {
            failures.push(format!("{}: does not begin with a //! description", workspace.relative(path)));
        }
    }
    Ok(Findings::of(failures))
}

fn is_text(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    let verbatim = VERBATIM.iter().any(|verbatim| name == *verbatim);
    !verbatim && path.extension().is_none_or(|end| TEXT.iter().any(|known| end == *known)) && is_utf8(path)
}

fn is_utf8(path: &Path) -> bool {
    std::fs::read(path).is_ok_and(|bytes| std::str::from_utf8(&bytes).is_ok())
}

/// A document's link targets, and its links.
struct Document {
    anchors: BTreeSet<String>,
    links: Vec<String>,
}

impl Document {
    fn parse(text: &str) -> Self {
        let mut anchors = BTreeSet::new();
        let mut links = Vec::new();
        let mut heading: Option<String> = None;
        for event in Parser::new(text) {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let slug = slug(&heading.take().unwrap_or_default());
                    let again = (1..).map(|count| format!("{slug}-{count}"));
                    let free =
                        std::iter::once(slug.clone()).chain(again).find(|name| !anchors.contains(name));
                    anchors.extend(free);
                }
                Event::Text(part) | Event::Code(part) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&part);
                    }
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    links.push(dest_url.into_string());
                }
                _ => {}
            }
        }
        Self { anchors, links }
    }
}

/// Returns the anchor that code hosts generate for a heading.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns the reason why `link` in the document at `from` does not resolve; `None` if it resolves or leads out of the
/// tree.
fn broken(from: &Path, link: &str, documents: &BTreeMap<PathBuf, Document>) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() { from.to_owned() } else { plain(&from.parent()?.join(path)) };
    if !target.exists() {
        return Some(format!("links to {path}, which does not exist"));
    }
    let document = documents.get(&target)?;
    (!anchor.is_empty() && !document.anchors.contains(anchor))
        .then(|| format!("links to {link}, but there is no such heading"))
}

/// Returns the documents in `folder` without a link in its index, `README.md`.
fn unlisted<'a>(
    folder: &'a Path,
    documents: &'a BTreeMap<PathBuf, Document>,
) -> impl Iterator<Item = &'a PathBuf> + use<'a> {
    let index = folder.join("README.md");
    let links = documents.get(&index).into_iter().flat_map(|index| &index.links);
    let listed: BTreeSet<PathBuf> = links.map(|link| plain(&folder.join(link))).collect();
    documents
        .keys()
        .filter(move |path| path.starts_with(folder) && **path != index && !listed.contains(*path))
}

/// Returns `path` without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

fn stray_space(relative: &str, text: &str) -> Vec<String> {
    let mut failures: Vec<String> = text
        .lines()
        .enumerate()
        .filter(|(_, line)| line.ends_with([' ', '\t', '\r']))
        .map(|(index, _)| format!("{relative}:{}: white space at the end of the line", index + 1))
        .collect();
    if !text.is_empty() && (!text.ends_with('\n') || text.ends_with("\n\n")) {
        failures.push(format!("{relative}: does not end with one line break"));
    }
    failures
}

fn opens_with_what_it_is(text: &str) -> bool {
    text.lines().next().is_some_and(|line| line.starts_with("//! ") && line.len() > "//! ".len())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the reasons for broken links in `a/one.md` with the contents `text`.
    fn broken_in(text: &str) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let root = folder.path();
        fs::create_dir_all(root.join("a")).expect("a folder for the test");
        let two = "# Who does `what`?\n\n## Who does what\n\n```\n# No heading\n```\n";
        fs::write(root.join("two.md"), two).expect("a file for the test");
        let from = root.join("a/one.md");
        fs::write(&from, text).expect("a file for the test");
        let one = Document::parse(text);
        let links = one.links.clone();
        let documents = [(from.clone(), one), (root.join("two.md"), Document::parse(two))].into();
        links.iter().filter_map(|link| broken(&from, link, &documents)).collect()
    }

    #[test]
    fn links_to_existing_files_and_headings_pass() {
        let text = "# Top\n\n[a](../two.md) [b](../two.md#who-does-what) [c](../two.md#who-does-what-1) [d](#top) \
                    [e](https://example.org/no.md) [f](..)";
        assert_eq!(broken_in(text), [""; 0]);
    }

    #[test]
    fn broken_links_are_found() {
        assert_eq!(broken_in("[a](two.md) ![b](../none.png) [c](../two.md#no-heading) [d](#top)").len(), 4);
    }

    #[test]
    fn links_in_code_are_not_links() {
        assert_eq!(broken_in("`[a](none.md)`\n\n    [b](none.md)\n"), [""; 0]);
    }

    #[test]
    fn a_document_without_a_link_in_the_index_is_found() {
        let document = |text: &str| Document::parse(text);
        let folder = Path::new("/tree/docs");
        let documents = [
            (folder.join("README.md"), document("[a](a.md) [b](sub/../sub/b.md) [c](../C.md)")),
            (folder.join("a.md"), document("")),
            (folder.join("sub/b.md"), document("")),
            (folder.join("sub/lost.md"), document("")),
            (PathBuf::from("/tree/README.md"), document("")),
        ];
        let documents = documents.into();
        assert_eq!(unlisted(folder, &documents).collect::<Vec<_>>(), [&folder.join("sub/lost.md")]);
    }

    #[test]
    fn stray_white_space_is_found() {
        assert_eq!(stray_space("a", "one\ntwo\n"), [""; 0]);
        assert_eq!(stray_space("a", "one \ntwo\t\n").len(), 2);
        assert_eq!(stray_space("a", "one").len(), 1);
        assert_eq!(stray_space("a", "one\n\n").len(), 1);
    }

    #[test]
    fn a_crate_opens_with_a_sentence() {
        assert!(opens_with_what_it_is("//! Rings.\n"));
        assert!(!opens_with_what_it_is("//!\n"));
        assert!(!opens_with_what_it_is("#![no_std]\n//! Rings.\n"));
    }
}

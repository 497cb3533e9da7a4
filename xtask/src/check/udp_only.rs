//! An image whose application uses UDP only contains no code of TCP, except for the answer to unexpected segments.
//!
//! The network stack reaches TCP only while a flag is set, and only calls of the application set it
//! (`net/stack/src/tcp/in_use.rs`). The link drops TCP from an image without such calls. One reference without a check of
//! the flag brings all of it back; this check therefore reads the symbols of such images. It builds nothing:
//! `cargo xtask images` and `cargo xtask check red-zone` do, and the former runs this check.

use super::image::functions;
use super::{Check, Findings};
use crate::error::Error;
use crate::workspace::Workspace;

pub const CHECK: Check = Check {
    name: "udp-only",
    about: "images that use UDP only contain no code of TCP",
    remedy: "check `is_in_use` (net/stack/src/tcp/in_use.rs) before the code that a stack without TCP reaches; a drop of \
             a type with connections is such code, too",
    run,
};

/// The images whose applications use UDP only.
const UDP_ONLY: &[&str] = &["primes"];
/// The path of TCP's code.
const TCP: &str = "isola_net_stack::tcp::";
/// The parts of it that every image contains.
const IN_EVERY_IMAGE: &[&str] =
    &["isola_net_stack::tcp::refusal::", "isola_net_stack::tcp::segment::validate"];
/// The most functions that a failure names.
const NAMES_AT_MOST: usize = 8;

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let images = workspace.images();
    let mut findings = Findings::default();
    for name in UDP_ONLY {
        let Some(image) = images.iter().find(|image| image.name == *name) else {
            findings.failures.push(format!("the tree has no image {name}; name another in UDP_ONLY"));
            continue;
        };
        if !image.path.exists() {
            let path = workspace.relative(&image.path);
            findings.not_checked = Some(format!("{path} is not built; build it with `cargo images`"));
            continue;
        }
        let names = functions(&image.path)?.into_iter().map(|function| function.name);
        findings.failures.extend(judge(name, names));
    }
    Ok(findings)
}

/// Returns the violation of the image with functions of these names, if any.
fn judge(image: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let mut found: Vec<String> = names.filter(|name| is_tcp(name)).collect();
    found.sort_unstable();
    found.dedup();
    let count = found.len();
    found.truncate(NAMES_AT_MOST);
    (count > 0).then(|| format!("{image} contains {count} functions of TCP: {}", found.join(", ")))
}

/// Returns whether a function belongs to TCP, or is generic code for a type of TCP.
fn is_tcp(name: &str) -> bool {
    IN_EVERY_IMAGE.iter().fold(name.to_owned(), |name, part| name.replace(part, "")).contains(TCP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(names: &[&str]) -> Option<String> {
        judge("app", names.iter().map(|name| name.to_string()))
    }

    #[test]
    fn code_of_tcp_and_generic_code_for_its_types_are_found() {
        for name in [
            "isola_net_stack::tcp::tables::Tcp::settle",
            "<isola_net_stack::tcp::seq::Seq as core::ops::Add>::add",
            "core::ptr::drop_in_place<isola_net_stack::tcp::connection::Connection>",
            "<isola_net_stack::tcp::refusal::Resets as X<isola_net_stack::tcp::seq::Seq>>::f",
        ] {
            assert!(verdict(&[name]).is_some(), "{name}");
        }
    }

    #[test]
    fn the_answer_to_unexpected_segments_and_other_protocols_are_allowed() {
        let names = ["isola_net_stack::tcp::refusal::Resets::answer", "isola_net_stack::udp::packet"];
        assert_eq!(verdict(&names), None);
        assert_eq!(verdict(&["isola_net::tcp::Listening::port"]), None);
    }

    #[test]
    fn a_failure_names_a_few_functions_and_counts_all() {
        let names: Vec<String> = (0..20).map(|number| format!("isola_net_stack::tcp::f{number}")).collect();
        let found = judge("app", names.into_iter()).unwrap();
        assert!(found.contains("contains 20 functions") && found.matches("::tcp::").count() == NAMES_AT_MOST);
    }
}

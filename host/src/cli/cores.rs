//! The cores of a machine in readable form: their owners and their topology.

use crate::output::table;
use crate::output::view::MachineCoreView;
use std::fmt::Write;

/// Formats the cores as a table. If the machine has several nodes, caches or siblings, a diagram precedes the table,
/// with a line per node and last-level cache, and brackets around each physical core.
///
/// ```text
/// node 0, cache 0   [0 supervisor | 1 -] [2 kv | 3 kv]
/// node 1, cache 1   [4 web | 5 -] [6 - | 7 -]
/// ```
pub(super) fn cores_text(cores: &[MachineCoreView], name_of: impl Fn(&str) -> String) -> String {
    let mut text = String::new();
    let flat = cores.iter().all(|core| core.thread == 0 && core.cache == 0 && core.node == 0);
    if !flat {
        text = picture(cores, &name_of);
        text.push('\n');
    }
    let rows = cores.iter().map(|core| {
        let numbers =
            [core.id, core.node, core.cache, core.physical, core.thread].map(|number| number.to_string());
        numbers.into_iter().chain([name_of(&core.owner)]).collect()
    });
    text + &table(&["CORE", "NODE", "CACHE", "PHYSICAL", "THREAD", "OWNER"], rows)
}

fn picture(cores: &[MachineCoreView], name_of: impl Fn(&str) -> String) -> String {
    let mut sorted: Vec<&MachineCoreView> = cores.iter().collect();
    sorted.sort_by_key(|core| (core.node, core.cache, core.physical, core.thread));
    let mut text = String::new();
    for cache in sorted.chunk_by(|one, next| (one.node, one.cache) == (next.node, next.cache)) {
        let _ = write!(text, "node {}, cache {:<3}", cache[0].node, cache[0].cache);
        for physical in cache.chunk_by(|one, next| one.physical == next.physical) {
            let core = |core: &&MachineCoreView| {
                let owner = name_of(&core.owner);
                let owner = owner.strip_prefix("cell ").unwrap_or(if owner == "free" { "-" } else { &owner });
                format!("{} {owner}", core.id)
            };
            let _ = write!(text, " [{}]", physical.iter().map(core).collect::<Vec<_>>().join(" | "));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(id: u32, node: u32, physical: u32, thread: u32, owner: &str) -> MachineCoreView {
        MachineCoreView { id, node, package: node, cache: node, physical, thread, owner: owner.into() }
    }

    fn name_of(owner: &str) -> String {
        if owner == "7" { "cell kv".into() } else { owner.into() }
    }

    #[test]
    fn the_diagram_shows_nodes_and_siblings() {
        let cores = [
            core(0, 0, 0, 0, "supervisor"),
            core(1, 0, 1, 0, "7"),
            core(2, 0, 0, 1, "free"),
            core(3, 0, 1, 1, "7"),
            core(4, 1, 2, 0, "failed"),
        ];
        let text = cores_text(&cores, name_of);
        let expected =
            "node 0, cache 0   [0 supervisor | 2 -] [1 kv | 3 kv]\nnode 1, cache 1   [4 failed]\n\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("PHYSICAL"), "{text}");
    }

    #[test]
    fn a_machine_whose_cores_share_nothing_is_a_table() {
        let text = cores_text(&[core(0, 0, 0, 0, "supervisor"), core(1, 0, 1, 0, "free")], name_of);
        assert!(text.starts_with("CORE"), "{text}");
    }
}

//! What this host lacks of the tests' needs, reported before the first test runs.

use std::collections::BTreeSet;

use isola_need::{Missing, Need, SKIP};

/// Returns the report: which tests will fail and why, the command that mends the host, and the setting that skips them.
pub fn survey(missing: &[Missing], skips: &BTreeSet<Need>) -> String {
    let mut text = String::new();
    for need in skips {
        text += &format!("{SKIP} names {}; skipped: {}\n", need.word(), need.tests());
    }
    if missing.is_empty() {
        return text;
    }
    for missing in missing {
        text += &format!("{}; this fails: {}\n", missing.reason, missing.need.tests());
        text += &format!("    to mend it: {}\n", missing.mend);
    }
    let words: BTreeSet<Need> =
        missing.iter().map(|missing| missing.need).chain(skips.iter().copied()).collect();
    let words: Vec<&str> = words.into_iter().map(Need::word).collect();
    text + &format!("to skip them: {SKIP}={} ./isola test\n\n", words.join(","))
}

/// Returns the Debian packages that have the programs that this host lacks, each once.
pub fn missing_packages(needs: &BTreeSet<Need>) -> Vec<&'static str> {
    let packages: BTreeSet<&str> = needs
        .iter()
        .filter(|need| need.lacks_a_program())
        .flat_map(|need| need.packages())
        .copied()
        .collect();
    packages.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(need: Need, mend: &str) -> Missing {
        Missing { need, reason: "it is not there".into(), mend: mend.into() }
    }

    #[test]
    fn the_report_has_the_mend_and_a_setting_with_all_words() {
        let missing =
            [missing(Need::Tap, "modprobe tun"), missing(Need::Memcached, "apt-get install memcached")];
        let text = survey(&missing, &BTreeSet::from([Need::Valgrind]));
        assert!(text.contains("to mend it: modprobe tun\n"), "{text}");
        assert!(text.contains("to mend it: apt-get install memcached\n"), "{text}");
        assert!(text.contains("apps/kv/tests/differential.rs"), "{text}");
        assert!(text.contains("to skip them: ISOLA_SKIP=tap,memcached,valgrind ./isola test\n"), "{text}");
    }

    #[test]
    fn a_host_that_has_everything_is_not_reported() {
        assert_eq!(survey(&[], &BTreeSet::new()), "");
    }
}

//! Reports the tests' prerequisites that this host lacks, before the first test runs.

use std::collections::BTreeSet;

use isola_need::{Missing, Need, SKIP};

/// Returns the report: the tests that will fail and the reasons, the commands that install the prerequisites, and the
/// setting that skips the tests.
pub fn survey(missing: &[Missing], skips: &BTreeSet<Need>) -> String {
    let mut text = String::new();
    for need in skips {
        text += &format!("{SKIP} has {}; skipped: {}\n", need.word(), need.tests());
    }
    if missing.is_empty() {
        return text;
    }
    for missing in missing {
        text += &format!("{}; these tests fail: {}\n", missing.reason, missing.need.tests());
        text += &format!("    to fix it: {}\n", missing.mend);
    }
    let words: BTreeSet<Need> =
        missing.iter().map(|missing| missing.need).chain(skips.iter().copied()).collect();
    let words: Vec<&str> = words.into_iter().map(Need::word).collect();
    text + &format!("to skip them: {SKIP}={} ./isola test\n\n", words.join(","))
}

/// Returns the Debian packages with the programs that this host lacks, without duplicates.
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
    fn the_report_has_the_remedies_and_a_setting_with_all_words() {
        let missing =
            [missing(Need::Tap, "modprobe tun"), missing(Need::Memcached, "apt-get install memcached")];
        let text = survey(&missing, &BTreeSet::from([Need::Valgrind]));
        assert!(text.contains("to fix it: modprobe tun\n"), "{text}");
        assert!(text.contains("to fix it: apt-get install memcached\n"), "{text}");
        assert!(text.contains("apps/kv/tests/differential.rs"), "{text}");
        assert!(text.contains("to skip them: ISOLA_SKIP=tap,memcached,valgrind ./isola test\n"), "{text}");
    }

    #[test]
    fn a_host_with_all_prerequisites_has_no_report() {
        assert_eq!(survey(&[], &BTreeSet::new()), "");
    }
}

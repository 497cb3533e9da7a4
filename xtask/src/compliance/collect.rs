//! Finds the rules that tests name.

use super::Proofs;

/// A rule of an RFC.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rule {
    /// The number of the RFC.
    pub rfc: u32,
    /// The section, part by part: numbers in their order, before letters.
    pub section: Vec<Part>,
    /// What it demands.
    pub text: String,
}

/// What stands between two full stops of a section's number.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// As in `3.10`.
    Number(u32),
    /// As in `A.2`.
    Name(String),
}

/// A test that proves a rule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Proof {
    /// What is proved.
    pub rule: Rule,
    /// The file, relative to the root.
    pub file: String,
    /// The test function, or the script's name.
    pub test: String,
}

/// What is known of an item while its documentation and attributes go by.
#[derive(Default)]
struct Item {
    rules: Vec<Rule>,
    failures: Vec<String>,
    attributes: Vec<String>,
}

impl Item {
    /// Whether it is a test that every run of the tests has.
    fn is_test(&self) -> bool {
        let has = |start| self.attributes.iter().any(|attribute| attribute.starts_with(start));
        has("#[test]") && !has("#[ignore")
    }
}

/// The proofs in the Rust file `file` that reads `text`. What is not above a test is documentation.
pub fn of_rust(file: &str, text: &str) -> Proofs {
    let mut proofs = Proofs::default();
    let mut item = Item::default();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if let Some(words) = line.strip_prefix("/// RFC ") {
            match rule(words) {
                Some(rule) => item.rules.push(rule),
                None => item.failures.push(complaint(file, number)),
            }
        } else if line.starts_with("#[") {
            item.attributes.push(line.to_owned());
        } else if !line.starts_with("//") {
            if let Some(test) = function(line).filter(|_| item.is_test()) {
                let proof = |rule| Proof { rule, file: file.to_owned(), test: test.to_owned() };
                proofs.found.extend(item.rules.drain(..).map(proof));
                proofs.failures.append(&mut item.failures);
            }
            item = Item::default();
        }
    }
    proofs
}

/// The proofs of the script `file` that reads `text`: those in the comments that it begins with.
pub fn of_script(file: &str, text: &str) -> Proofs {
    let mut proofs = Proofs::default();
    let name = file.rsplit('/').next().unwrap_or(file).trim_end_matches(".script");
    for (number, line) in (1..).zip(text.lines()).take_while(|(_, line)| line.starts_with('#')) {
        let Some(words) = line.strip_prefix("# RFC ") else { continue };
        match rule(words) {
            Some(rule) => proofs.found.push(Proof { rule, file: file.to_owned(), test: name.to_owned() }),
            None => proofs.failures.push(complaint(file, number)),
        }
    }
    if proofs.found.is_empty() && proofs.failures.is_empty() {
        proofs.failures.push(format!("{file}: does not begin with `# RFC NUMBER SECTION: rule`"));
    }
    proofs
}

fn complaint(file: &str, line: usize) -> String {
    format!("{file}:{line}: is not `RFC NUMBER SECTION: rule`")
}

/// Reads `9293 3.8.6.1: a rule`.
fn rule(words: &str) -> Option<Rule> {
    let (place, text) = words.split_once(": ")?;
    let (rfc, section) = place.split_once(' ')?;
    let section = section.split('.').map(part).collect::<Option<_>>()?;
    let text = text.trim().to_owned();
    (!text.is_empty()).then_some(Rule { rfc: rfc.parse().ok()?, section, text })
}

fn part(text: &str) -> Option<Part> {
    let fits = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric());
    fits.then(|| text.parse().map_or_else(|_| Part::Name(text.to_owned()), Part::Number))
}

/// The name of the function that begins on `line`.
fn function(line: &str) -> Option<&str> {
    let words = line.strip_prefix("pub ").unwrap_or(line);
    let words = words.strip_prefix("async ").unwrap_or(words);
    let end = words.find(['(', '<'])?;
    words.get(..end)?.strip_prefix("fn ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tests(proofs: &Proofs) -> Vec<(u32, &str, &str)> {
        proofs.found.iter().map(|p| (p.rule.rfc, p.rule.text.as_str(), p.test.as_str())).collect()
    }

    #[test]
    fn rules_above_a_test_are_its_proofs() {
        let proofs = of_rust(
            "net/a.rs",
            "/// RFC 9293 3.1: one.\n/// More words.\n    /// RFC 791 A.2: two\n#[test]\nfn first() {\n}\n\n#[test]\nfn second() {}\n",
        );
        assert_eq!(tests(&proofs), [(9293, "one.", "first"), (791, "two", "first")]);
        assert_eq!(proofs.failures, [""; 0]);
    }

    #[test]
    fn what_is_said_of_other_items_proves_nothing() {
        let text = "/// RFC 9293 3.1: as here.\nfn helper() {}\n/// RFC 9293 3.1: as here.\nconst A: u8 = 1;\n\
                    /// RFC 6928: ten segments.\nconst B: u8 = 1;\n#[test]\nfn test() {}\n";
        let proofs = of_rust("net/a.rs", text);
        assert_eq!((proofs.found.len(), proofs.failures.len()), (0, 0));
    }

    #[test]
    fn a_test_that_is_not_run_proves_nothing() {
        for reason in ["", " = \"needs a tap device\""] {
            let text = format!("/// RFC 9293 3.1: one.\n#[test]\n#[ignore{reason}]\nfn test() {{}}\n");
            assert_eq!(tests(&of_rust("net/a.rs", &text)), []);
        }
    }

    #[test]
    fn a_line_above_a_test_that_cannot_be_understood_is_found() {
        let proofs = of_rust("net/a.rs", "/// RFC 9293: no section\n#[test]\nfn test() {}\n");
        assert_eq!(proofs.failures, ["net/a.rs:1: is not `RFC NUMBER SECTION: rule`"]);
    }

    #[test]
    fn a_script_begins_with_its_rules() {
        let proofs =
            of_script("net/rfc9293/close.script", "# RFC 9293 3.6: a.\n# words\n\n# RFC 1 1: late\n");
        assert_eq!(tests(&proofs), [(9293, "a.", "close")]);
        assert_eq!(of_script("net/b.script", "+0 < S\n").failures.len(), 1);
        assert_eq!(of_script("net/b.script", "# RFC 9293: a.\n").failures.len(), 1);
    }

    #[test]
    fn sections_are_ordered_by_their_numbers() {
        let section = |text| rule(&format!("1 {text}: x")).map(|rule| rule.section);
        assert!(section("3.9") < section("3.10"));
        assert!(section("3") < section("3.1"));
        assert!(section("9") < section("A"));
        assert_eq!(section("3..1"), None);
        assert_eq!(section("3, 4"), None);
    }
}

//! Collects the rules that tests claim to prove.

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};

use super::Proofs;

/// A rule of an RFC.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rule {
    /// The number of the RFC.
    pub rfc: u32,
    /// The section, part by part. Numbers sort by value, and before letters.
    pub section: Vec<SectionPart>,
    /// The rule in a few words.
    pub text: String,
}

/// A part of a section's number, between full stops.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SectionPart {
    /// As in `3.10`.
    Number(u32),
    /// As in `A.2`.
    Name(String),
}

/// A test that proves a rule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Proof {
    /// The rule.
    pub rule: Rule,
    /// The file, relative to the root.
    pub file: String,
    /// The test function, or the script's name.
    pub test: String,
}

/// The state of an item while its attributes are read.
#[derive(Default)]
struct Item {
    rules: Vec<Rule>,
    failures: Vec<String>,
    is_test: bool,
    is_function: bool,
}

/// Returns the claims in the Rust file `file` with `tokens`: `#[proves("RFC NUMBER SECTION", "rule")]`. The compiler
/// has verified that each is above a test that every run contains.
pub fn of_rust(file: &str, tokens: TokenStream) -> Proofs {
    let mut proofs = Proofs::default();
    find(file, tokens, &mut proofs);
    proofs
}

fn find(file: &str, tokens: TokenStream, proofs: &mut Proofs) {
    let mut item = Item::default();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                if let Some(TokenTree::Group(attribute)) = tokens.next_if(is_group) {
                    item.take(file, punct.span(), attribute.stream());
                }
            }
            TokenTree::Ident(word) if word == "fn" => item.is_function = true,
            TokenTree::Ident(word) if item.is_function => {
                if item.is_test {
                    let test = word.to_string();
                    let proof = |rule| Proof { rule, file: file.to_owned(), test: test.clone() };
                    proofs.found.extend(item.rules.drain(..).map(proof));
                    proofs.failures.append(&mut item.failures);
                }
                item = Item::default();
            }
            TokenTree::Ident(_) => {}
            TokenTree::Group(group) => {
                if group.delimiter() == Delimiter::Brace {
                    item = Item::default();
                }
                find(file, group.stream(), proofs);
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => item = Item::default(),
        }
    }
}

fn is_group(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(_))
}

impl Item {
    /// Records an attribute.
    fn take(&mut self, file: &str, at: Span, attribute: TokenStream) {
        let mut tokens = attribute.into_iter();
        let Some(TokenTree::Ident(name)) = tokens.next() else { return };
        let complaint = || complaint(file, at.start().line);
        match (name.to_string().as_str(), tokens.next(), tokens.next()) {
            ("test", None, None) => self.is_test = true,
            ("proves", Some(TokenTree::Group(claim)), None) => match claimed(claim.stream()) {
                Some(rule) => self.rules.push(rule),
                None => self.failures.push(complaint()),
            },
            // The compiler does not check a claim in a comment.
            ("doc", Some(_), Some(text)) if is_claim(&text.to_string()) => self.failures.push(complaint()),
            _ => {}
        }
    }
}

/// Returns whether a comment begins with a claim in the form of scripts.
fn is_claim(comment: &str) -> bool {
    let words = comment.trim_start_matches(['r', '#', '"', ' ']).strip_prefix("RFC ");
    words.is_some_and(|words| rule(words).is_some())
}

/// Parses `"RFC 9293 3.8.6.1", "a rule"`.
fn claimed(claim: TokenStream) -> Option<Rule> {
    let mut strings = claim.into_iter().filter_map(|token| match token {
        TokenTree::Literal(literal) => Some(literal.to_string()),
        _ => None,
    });
    let (source, text) = (strings.next()?, strings.next()?);
    let source = source.strip_prefix("\"RFC ")?.strip_suffix('"')?;
    let text = text.strip_prefix('"')?.strip_suffix('"')?.replace("\\\"", "\"").replace("\\\\", "\\");
    rule(&format!("{source}: {text}"))
}

/// Returns the claims of the script `file` with the contents `text`: those in the comments at its head.
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
    let form = match file.ends_with(".script") {
        true => "# RFC NUMBER SECTION: rule",
        false => "#[proves(\"RFC NUMBER SECTION\", \"rule\")]",
    };
    format!("{file}:{line}: is not `{form}`")
}

/// Parses `9293 3.8.6.1: a rule`.
fn rule(words: &str) -> Option<Rule> {
    let (place, text) = words.split_once(": ")?;
    let (rfc, section) = place.split_once(' ')?;
    let section = section.split('.').map(part).collect::<Option<_>>()?;
    let text = text.trim().to_owned();
    (!text.is_empty()).then_some(Rule { rfc: rfc.parse().ok()?, section, text })
}

fn part(text: &str) -> Option<SectionPart> {
    let fits = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric());
    fits.then(|| text.parse().map_or_else(|_| SectionPart::Name(text.to_owned()), SectionPart::Number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tests(proofs: &Proofs) -> Vec<(u32, &str, &str)> {
        proofs.found.iter().map(|p| (p.rule.rfc, p.rule.text.as_str(), p.test.as_str())).collect()
    }

    fn read(text: &str) -> Proofs {
        of_rust("net/a.rs", text.parse().expect("Rust"))
    }

    #[test]
    fn rules_above_a_test_are_its_proofs() {
        let proofs = read(
            "#[proves(\"RFC 9293 3.1\", \"one.\")]\n#[proves(\n    \"RFC 791 A.2\",\n    \"a \\\"b\\\"\"\n)]\n#[test]\n\
             #[should_panic]\nfn first() {\n}\n\n#[test]\nfn second() {}\n",
        );
        assert_eq!(tests(&proofs), [(9293, "one.", "first"), (791, "a \"b\"", "first")]);
        assert_eq!(proofs.failures, [""; 0]);
    }

    #[test]
    fn tests_in_modules_and_macros_are_found() {
        let text = "mod tests { proptest! { #[proves(\"RFC 1 2\", \"r\")] #[test] fn t(a in 0..9) {} } }";
        assert_eq!(tests(&read(text)), [(1, "r", "t")]);
    }

    #[test]
    fn comments_on_other_items_are_no_claims() {
        let text = "/// RFC 9293 3.1: as here.\nfn helper() {}\n/// RFC 9293 3.1: as here.\nconst A: u8 = 1;\n\
                    /// RFC 6928: ten segments.\nconst B: u8 = 1;\n#[test]\nfn test() {}\n";
        let proofs = read(text);
        assert_eq!((proofs.found.len(), proofs.failures.len()), (0, 0));
    }

    #[test]
    fn a_claim_in_a_comment_above_a_test_is_found() {
        let proofs = read("/// RFC 9293 3.1: one\n#[test]\nfn test() {}\n");
        assert_eq!(proofs.failures, ["net/a.rs:1: is not `#[proves(\"RFC NUMBER SECTION\", \"rule\")]`"]);
        assert_eq!(read("/// RFC 9293 3.1 has more.\n#[test]\nfn test() {}\n").failures, [""; 0]);
    }

    #[test]
    fn a_malformed_claim_is_found() {
        let proofs = read("#[proves(\"RFC 9293\", \"no section\")]\n#[test]\nfn test() {}\n");
        assert_eq!(proofs.failures.len(), 1);
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

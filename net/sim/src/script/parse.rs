//! The parser of scripts.

use super::{Action, Call, IcmpError, Script, Segment, Step};
use isola_net_stack::Duration;
use std::str::FromStr;

/// The words of a line.
pub(crate) struct Words<'a> {
    rest: &'a str,
}

impl<'a> Words<'a> {
    pub fn new(line: &'a str) -> Self {
        Self { rest: line.trim() }
    }

    /// Returns the next word, if there is one.
    pub fn peek(&self) -> Option<&'a str> {
        self.rest.split_whitespace().next()
    }

    /// Takes the next word; an error names its meaning.
    pub fn word(&mut self, meaning: &str) -> Result<&'a str, String> {
        let word = self.peek().ok_or_else(|| format!("{meaning} is missing"))?;
        self.rest = self.rest.trim_start()[word.len()..].trim_start();
        Ok(word)
    }

    /// Takes everything up to and including `end`.
    pub fn until(&mut self, end: char) -> Result<&'a str, String> {
        let at = self.rest.find(end).ok_or_else(|| format!("no {end} to the end"))?;
        let (taken, rest) = self.rest.split_at(at + end.len_utf8());
        self.rest = rest.trim_start();
        Ok(taken)
    }

    /// Takes the rest of the line.
    pub fn all(&mut self) -> &'a str {
        std::mem::take(&mut self.rest)
    }

    /// Takes a number.
    pub fn number<N: FromStr>(&mut self, meaning: &str) -> Result<N, String> {
        let word = self.word(meaning)?;
        word.parse().map_err(|_| format!("{word} is no {meaning}"))
    }

    /// Takes the word `name` and a number.
    pub fn number_after<N: FromStr>(&mut self, name: &str) -> Result<N, String> {
        self.word(name)?;
        self.number(name)
    }

    fn time(&mut self, meaning: &str) -> Result<Duration, String> {
        time(self.word(meaning)?)
    }
}

/// Parses `0.2` (seconds), `40ms` or `10us`.
pub(super) fn time(word: &str) -> Result<Duration, String> {
    let (number, unit_ns) = match (word.strip_suffix("ms"), word.strip_suffix("us")) {
        (Some(number), _) => (number, 1e6),
        (_, Some(number)) => (number, 1e3),
        _ => (word, 1e9),
    };
    let number: f64 = number.parse().map_err(|_| format!("{word} is no time"))?;
    Ok(Duration::from_nanos((number * unit_ns).round() as u64))
}

impl Script {
    /// Parses the script `text` of `file`.
    ///
    /// # Errors
    /// A message with the file, the line that could not be parsed, and the reason.
    pub fn parse(file: &str, text: &str) -> Result<Self, String> {
        let mut script = Self { file: file.to_owned(), settings: Vec::new(), steps: Vec::new() };
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.split('#').next().unwrap_or_default().trim();
            if text.is_empty() {
                continue;
            }
            script.take(line, text).map_err(|why| format!("{file}:{line}: {text}\n  {why}"))?;
        }
        Ok(script)
    }

    fn take(&mut self, line: usize, text: &str) -> Result<(), String> {
        let mut words = Words::new(text);
        if words.peek() == Some("set") {
            words.word("set")?;
            let name = words.word("a name")?.to_owned();
            if !self.steps.is_empty() {
                return Err("set comes before everything else".into());
            }
            self.settings.push((line, name, words.word("a value")?.to_owned()));
            return Ok(());
        }
        let mut after = Duration::ZERO;
        if let Some(word) = words.peek().filter(|word| word.starts_with('+')) {
            after = time(&word[1..])?;
            words.word("a time")?;
        }
        let mut connection = 0;
        if let Some(letter) = words.peek().and_then(letter) {
            connection = letter - b'a';
            words.rest = words.rest[1..].trim_start();
        }
        let action = action(&mut words)?;
        if !words.rest.is_empty() {
            return Err(format!("{} says nothing here", words.rest));
        }
        self.steps.push(Step { line, text: text.to_owned(), after, connection, action });
        Ok(())
    }
}

/// Returns the letter of the connection at the start of `word`.
fn letter(word: &str) -> Option<u8> {
    match word.as_bytes() {
        [letter @ b'a'..=b'z'] | [letter @ b'a'..=b'z', b'<' | b'>'] => Some(*letter),
        _ => None,
    }
}

fn action(words: &mut Words<'_>) -> Result<Action, String> {
    Ok(match words.word("an action")? {
        "<" if words.peek() == Some("icmp") => Action::Icmp(icmp(words)?),
        "<" => Action::Send(Segment::parse(words)?),
        ">" => Action::Expect(Segment::parse(words)?),
        "quiet" => Action::Quiet(words.time("a time")?),
        "event" => Action::Event(words.all().to_owned()),
        "assert" => {
            let arguments = words.all();
            let (name, value) = arguments.rsplit_once(' ').ok_or("assert NAME VALUE")?;
            Action::Assert(name.to_owned(), value.to_owned())
        }
        "listen" => match words.peek() {
            Some(_) => Action::Call(Call::Listen(words.number("backlog")?)),
            None => Action::Call(Call::Listen(16)),
        },
        "unlisten" => Action::Call(Call::Unlisten),
        "connect" => Action::Call(Call::Connect),
        "accept" => Action::Call(Call::Accept),
        "write" => Action::Call(Call::Write(words.number("number of bytes")?)),
        "read" => Action::Call(Call::Read(words.number("number of bytes")?)),
        "shutdown" => Action::Call(Call::ShutDown),
        "close" => Action::Call(Call::Close),
        "abort" => Action::Call(Call::Abort),
        "set_window" => Action::Call(Call::SetWindow(words.number("number of bytes")?)),
        "set_send_limit" => Action::Call(Call::SetSendLimit(words.number("number of bytes")?)),
        "keep_alive" => Action::Call(Call::KeepAlive(
            words.time("idle time")?,
            words.time("interval")?,
            words.number("number of probes")?,
        )),
        other => return Err(format!("{other} is no action")),
    })
}

fn icmp(words: &mut Words<'_>) -> Result<IcmpError, String> {
    words.word("icmp")?;
    Ok(match words.word("an error")? {
        "too_big" => IcmpError::TooBig { mtu: words.number("MTU")?, start: words.number("start")? },
        "unreachable" => IcmpError::Unreachable { start: words.number("start")? },
        other => return Err(format!("{other} is no ICMP error")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> String {
        Script::parse("x.script", text).expect_err("a mistake")
    }

    #[test]
    fn a_parsed_segment_prints_as_its_source_text() {
        for text in [
            "S 0:0(0) win 60000 <mss 1460,sackOK,TS val 1 ecr 0,nop,wscale 7>",
            ".P 1:101(100) ack 7 win 5 <sack 1:2 5:9>",
            "- 1:1(0) [ce]",
            "R 5:5(0) <raw 0305>",
        ] {
            assert_eq!(Segment::parse(&mut Words::new(text)).expect(text).to_string(), text);
        }
    }

    #[test]
    fn errors_name_their_line() {
        assert!(why("\n< S 0:1(0)").starts_with("x.script:2: < S 0:1(0)\n  0 and 0 bytes do not end at 1"));
        assert!(why("< S. 0:0(0)").contains("go together"));
        assert!(why("< Q 0:0(0)").contains("Q is no combination"));
        assert!(why("< S 0:0(0) <mss>").contains("mss is no option"));
        assert!(why("jump").contains("jump is no action"));
        assert!(why("read").contains("number of bytes is missing"));
        assert!(why("close now").contains("now says nothing here"));
        assert!(why("listen\nset mtu 9").contains("before everything else"));
        assert!(why("+soon close").contains("soon is no time"));
    }

    #[test]
    fn times_are_parsed_with_their_units() {
        assert_eq!(time("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(time("40ms"), Ok(Duration::from_millis(40)));
        assert_eq!(time("15us"), Ok(Duration::from_micros(15)));
    }
}

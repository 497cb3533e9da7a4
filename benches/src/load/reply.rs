//! Answers of memcached's text protocol to the mix's requests.

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The server stored the value of a set.
    Stored,
    /// A get returned a value.
    Hit {
        /// The value's length.
        len: usize,
    },
    /// A get returned no value.
    Miss,
}

/// The result of parsing the beginning of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseResult {
    /// An answer and its length.
    Reply(Reply, usize),
    /// The beginning of an answer.
    Incomplete,
    /// No answer to a request of the mix.
    Unexpected,
}

/// Parses the first answer in `input`.
pub fn parse(input: &[u8]) -> ParseResult {
    let Some(end) = input.windows(2).position(|pair| pair == b"\r\n") else { return ParseResult::Incomplete };
    let (line, after) = (&input[..end], end + 2);
    match line {
        b"STORED" => ParseResult::Reply(Reply::Stored, after),
        b"END" => ParseResult::Reply(Reply::Miss, after),
        _ if line.starts_with(b"VALUE ") => match length(line) {
            Some(len) => value(input, after, len),
            None => ParseResult::Unexpected,
        },
        _ => ParseResult::Unexpected,
    }
}

/// Returns the length in `VALUE KEY FLAGS LENGTH`.
fn length(line: &[u8]) -> Option<usize> {
    let last = line.rsplit(|&byte| byte == b' ').next()?;
    std::str::from_utf8(last).ok()?.parse().ok()
}

/// Parses the rest of a hit, whose value begins at `start`.
fn value(input: &[u8], start: usize, len: usize) -> ParseResult {
    const END: &[u8] = b"\r\nEND\r\n";
    match input.get(start + len..start + len + END.len()) {
        None => ParseResult::Incomplete,
        Some(END) => ParseResult::Reply(Reply::Hit { len }, start + len + END.len()),
        Some(_) => ParseResult::Unexpected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_parsed_one_by_one() {
        assert_eq!(parse(b"STORED\r\nSTORED\r\n"), ParseResult::Reply(Reply::Stored, 8));
        assert_eq!(parse(b"END\r\n"), ParseResult::Reply(Reply::Miss, 5));
        let hit = b"VALUE key 0 4\r\n\r\nab\r\nEND\r\nSTORED\r\n";
        assert_eq!(parse(hit), ParseResult::Reply(Reply::Hit { len: 4 }, hit.len() - 8));
    }

    #[test]
    fn a_partial_answer_is_incomplete() {
        let whole = b"VALUE key 0 3\r\nabc\r\nEND\r\n";
        for len in 0..whole.len() {
            assert_eq!(parse(&whole[..len]), ParseResult::Incomplete, "{len}");
        }
    }

    #[test]
    fn input_that_is_no_answer_is_unexpected() {
        for input in [&b"ERROR\r\n"[..], b"VALUE key 0 x\r\n", b"VALUE key 0 1\r\nabc\r\nEND\r\n", b"\r\n"] {
            assert_eq!(parse(input), ParseResult::Unexpected, "{}", String::from_utf8_lossy(input));
        }
    }
}

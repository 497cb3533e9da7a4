//! Host names, in the form of DNS.

use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use domain::base::{Name, ToName};

/// A name of up to 255 bytes. Equality ignores the letter case.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HostName(Name<Vec<u8>>);

impl HostName {
    /// Parses a name, with or without a trailing dot; `None` if it is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'\\';
        if text.is_empty() || text.ends_with('.') || !text.bytes().all(is_plain) {
            return None;
        }
        Name::vec_from_str(text).ok().map(Self)
    }

    pub(crate) fn of(name: &impl ToName) -> Self {
        Self(name.to_vec())
    }

    pub(crate) fn as_name(&self) -> &Name<Vec<u8>> {
        &self.0
    }

    /// Returns the name in wire format.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_slice()
    }

    /// Returns the name in wire format and lower case, which is equal for all spellings.
    pub fn key(&self) -> Vec<u8> {
        // The label lengths in between are at most 63, thus not letters.
        self.as_bytes().to_ascii_lowercase()
    }

    /// Returns the special use of a name that must not be queried (RFC 6761, 6; RFC 7686).
    pub fn special(&self) -> Option<Special> {
        let key = self.key();
        let is_under = |label: &[u8]| {
            let start = key.len().checked_sub(label.len())?;
            // A suffix that begins at a label boundary is a valid name itself.
            (key[start..] == *label && Name::from_slice(&key[start..]).is_ok()).then_some(())
        };
        if is_under(b"\x09localhost\0").is_some() {
            return Some(Special::Local);
        }
        let nowhere = is_under(b"\x07invalid\0").or_else(|| is_under(b"\x05onion\0"));
        nowhere.map(|()| Special::Nonexistent)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostName({})", self.0)
    }
}

/// The special use of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// The name of this machine.
    Local,
    /// The name does not exist.
    Nonexistent,
}

impl Special {
    /// Returns the addresses of such a name.
    pub fn addresses(self) -> &'static [IpAddr] {
        match self {
            Self::Local => &[IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::LOCALHOST)],
            Self::Nonexistent => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;
    use isola_proves::proves;

    #[test]
    fn names_are_equal_regardless_of_letter_case() {
        let name = HostName::parse("www.Example.org").unwrap();
        assert_eq!(name, HostName::parse("WWW.example.ORG.").unwrap());
        assert_eq!(name.key(), b"\x03www\x07example\x03org\0");
        assert_eq!(name.to_string(), "www.Example.org");
    }

    #[test]
    fn invalid_names_are_rejected() {
        let label = "a".repeat(64);
        let long = format!("{}a", "a.".repeat(126));
        for text in
            ["", ".", "..", "a..b", ".a", "a b", "a\\.b", "a\0", "\u{fc}", &label, &format!("{long}.a")]
        {
            assert!(HostName::parse(text).is_none(), "{text:?}");
        }
        assert!(HostName::parse(&long).is_some());
    }

    #[proves("RFC 6761 6.3", "names under localhost are this machine's and cause no query.")]
    #[proves("RFC 6761 6.4", "names under invalid do not exist and cause no query.")]
    #[test]
    fn special_names_are_recognised() {
        let special = |text: &str| HostName::parse(text).unwrap().special();
        assert_eq!(special("LocalHost"), Some(Special::Local));
        assert_eq!(special("a.localhost."), Some(Special::Local));
        assert_eq!(special("x.invalid"), Some(Special::Nonexistent));
        assert_eq!(special("x.onion"), Some(Special::Nonexistent));
        for text in ["localhost.org", "xlocalhost", "onion.org", "a.notlocalhost"] {
            assert_eq!(special(text), None, "{text}");
        }
    }
}

//! A host's name, as DNS has it.

use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use domain::base::{Name, ToName};

/// A name of up to 255 bytes. Names are equal however their letters are written.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HostName(Name<Vec<u8>>);

impl HostName {
    /// The name that `text` is, with or without its last dot; `None` where it is none.
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

    /// The name on the wire.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_slice()
    }

    /// The name on the wire in small letters: all writings of a name have one.
    pub fn key(&self) -> Vec<u8> {
        // The lengths between the labels are no letters.
        self.as_bytes().to_ascii_lowercase()
    }

    /// What is known of names that nobody is to be asked for (RFC 6761, 6; RFC 7686).
    pub fn special(&self) -> Option<Special> {
        let key = self.key();
        let is_under = |label: &[u8]| {
            let start = key.len().checked_sub(label.len())?;
            // The length before a label is where the name begins, or behind another label.
            (key[start..] == *label && Name::from_slice(&key[start..]).is_ok()).then_some(())
        };
        if is_under(b"\x09localhost\0").is_some() {
            return Some(Special::Local);
        }
        let nowhere = is_under(b"\x07invalid\0").or_else(|| is_under(b"\x05onion\0"));
        nowhere.map(|()| Special::Nowhere)
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

/// What is known of a name without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// This machine.
    Local,
    /// There is no such name.
    Nowhere,
}

impl Special {
    /// The addresses of such a name.
    pub fn addresses(self) -> &'static [IpAddr] {
        match self {
            Self::Local => &[IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::LOCALHOST)],
            Self::Nowhere => &[],
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
    fn a_name_is_the_same_however_it_is_written() {
        let name = HostName::parse("www.Example.org").unwrap();
        assert_eq!(name, HostName::parse("WWW.example.ORG.").unwrap());
        assert_eq!(name.key(), b"\x03www\x07example\x03org\0");
        assert_eq!(name.to_string(), "www.Example.org");
    }

    #[test]
    fn what_is_no_name_is_none() {
        let label = "a".repeat(64);
        let long = format!("{}a", "a.".repeat(126));
        for text in
            ["", ".", "..", "a..b", ".a", "a b", "a\\.b", "a\0", "\u{fc}", &label, &format!("{long}.a")]
        {
            assert!(HostName::parse(text).is_none(), "{text:?}");
        }
        assert!(HostName::parse(&long).is_some());
    }

    #[proves("RFC 6761 6.3", "names under localhost are this machine's, and nobody is asked.")]
    #[proves("RFC 6761 6.4", "there are no names under invalid, and nobody is asked.")]
    #[test]
    fn nobody_is_asked_for_special_names() {
        let special = |text: &str| HostName::parse(text).unwrap().special();
        assert_eq!(special("LocalHost"), Some(Special::Local));
        assert_eq!(special("a.localhost."), Some(Special::Local));
        assert_eq!(special("x.invalid"), Some(Special::Nowhere));
        assert_eq!(special("x.onion"), Some(Special::Nowhere));
        for text in ["localhost.org", "xlocalhost", "onion.org", "a.notlocalhost"] {
            assert_eq!(special(text), None, "{text}");
        }
    }
}

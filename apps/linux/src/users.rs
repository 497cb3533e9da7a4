//! Users and groups by name: `/etc/passwd` and `/etc/group` of the root file system.
//!
//! Both files may contain anything. A line that is not one of theirs is skipped, as the C library does.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// The most bytes of a user's name (useradd(8)).
const MOST_NAME_LEN: usize = 32;

/// The user of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user's id.
    pub user: u32,
    /// The group's id.
    pub group: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
    /// The home directory, if the files name one.
    pub home: Option<String>,
}

/// Finds the user that `USER[:GROUP]` names, each a name or a number, in the contents of `/etc/passwd` and `/etc/group`.
/// Without a group, it has those of the user; a number that the files do not have belongs to group 0.
///
/// # Errors
/// A text about the name that the files do not have.
pub fn find_user(text: &str, passwd: &[u8], group: &[u8]) -> Result<User, String> {
    let (user, given_group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    // Docker reads an empty name as root's.
    let user = if user.is_empty() { "0" } else { user };
    let number = user.parse::<u32>().ok();
    let entry = lines(passwd, 7)
        .find(|fields| fields[0] == user.as_bytes() || number.is_some() && number_of(fields[2]) == number);
    let entry =
        entry.and_then(|fields| Some((fields[0], number_of(fields[2])?, number_of(fields[3])?, fields[5])));
    let (name, id, own_group, home) = match (entry, number) {
        (Some((name, id, own_group, home)), _) => (Some(name), id, own_group, Some(home)),
        (None, Some(number)) => (None, number, 0, None),
        (None, None) => return Err(format!("/etc/passwd has no user {user}")),
    };
    let (group_id, groups) = match given_group {
        Some(given) => (find_group(given, group)?, Vec::new()),
        None => (own_group, name.map(|name| groups_of(name, group)).unwrap_or_default()),
    };
    let home = home.and_then(|home| str::from_utf8(home).ok()).filter(|home| home.starts_with('/'));
    Ok(User { user: id, group: group_id, groups, home: home.map(ToOwned::to_owned) })
}

/// Returns the ids and names of the users of an `/etc/passwd`.
pub fn user_names(passwd: &[u8]) -> Vec<(u32, String)> {
    let entry = |fields: Vec<&[u8]>| {
        let name = str::from_utf8(fields[0]).ok().filter(|name| name.len() <= MOST_NAME_LEN)?;
        Some((number_of(fields[2])?, name.to_owned()))
    };
    lines(passwd, 7).filter_map(entry).collect()
}

fn find_group(text: &str, group: &[u8]) -> Result<u32, String> {
    let named = lines(group, 4).find(|fields| fields[0] == text.as_bytes());
    let id = named.and_then(|fields| number_of(fields[2])).or_else(|| text.parse().ok());
    id.ok_or_else(|| format!("/etc/group has no group {text}"))
}

/// Returns the groups whose lists have a user.
fn groups_of(user: &[u8], group: &[u8]) -> Vec<u32> {
    let has = |fields: &Vec<&[u8]>| fields[3].split(|byte| *byte == b',').any(|member| member == user);
    lines(group, 4).filter(has).filter_map(|fields| number_of(fields[2])).collect()
}

/// Returns the lines with this number of fields, divided.
fn lines(text: &[u8], fields: usize) -> impl Iterator<Item = Vec<&[u8]>> {
    let divided = text.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':').collect());
    divided.filter(move |line: &Vec<&[u8]>| line.len() == fields && !line[0].is_empty())
}

fn number_of(field: &[u8]) -> Option<u32> {
    str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] =
        b"root:x:0:0:root:/root:/bin/sh\n# a comment\nbroken:x:1\nwww:x:33:34:web:/var/www:/bin/false\n\
        nohome:x:50:50:::\nhuge:x:99999999999:1::/:\n\xff\xfe:x:7:7::/bytes:/bin/sh\n";
    const GROUP: &[u8] = b"root:x:0:\nwww:x:34:\nadm:x:4:syslog,www\nssl:x:101:www\nwwwx:x:9:wwwx\n";

    #[test]
    fn names_and_numbers_lead_to_entries() {
        let find = |text| find_user(text, PASSWD, GROUP).unwrap();
        let www = User { user: 33, group: 34, groups: [4, 101].to_vec(), home: Some("/var/www".into()) };
        assert_eq!((find("www"), find("33")), (www.clone(), www.clone()));
        assert_eq!(find("www:adm"), User { group: 4, groups: Vec::new(), ..www.clone() });
        assert_eq!(find("33:77"), User { group: 77, groups: Vec::new(), ..www });
        let root = User { user: 0, group: 0, groups: Vec::new(), home: Some("/root".into()) };
        assert_eq!((find("root"), find(""), find(":0")), (root.clone(), root.clone(), root));
        assert_eq!(find("1234"), User { user: 1234, group: 0, groups: Vec::new(), home: None });
        assert_eq!(find("nohome").home, None);
        assert_eq!(find_user("5:6", b"", b"").unwrap().group, 6);
    }

    #[test]
    fn users_have_the_names_of_their_lines() {
        let names = user_names(PASSWD);
        assert_eq!(
            names.iter().map(|(id, name)| (*id, name.as_str())).collect::<Vec<_>>(),
            [(0, "root"), (33, "www"), (50, "nohome"),]
        );
        assert!(user_names(format!("{}:x:1:1:::\n", "n".repeat(33)).as_bytes()).is_empty());
    }

    #[test]
    fn names_that_the_files_do_not_have_are_errors() {
        let error = |text| find_user(text, PASSWD, GROUP).unwrap_err();
        assert_eq!(error("nobody"), "/etc/passwd has no user nobody");
        assert_eq!(error("broken"), "/etc/passwd has no user broken");
        assert_eq!(error("huge"), "/etc/passwd has no user huge");
        assert_eq!(error("www:none"), "/etc/group has no group none");
        assert_eq!(error("www:"), "/etc/group has no group ");
    }
}

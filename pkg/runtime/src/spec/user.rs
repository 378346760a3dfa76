//! Who the command runs as: the image's `USER`, resolved by the image's own passwd and group files.
//!
//! Source: the rules of Docker: a name or number, optionally `:` and a group; a number need not be listed.

use crate::error::Error;

/// Linux reserves the upper half and -1.
const MAX_ID: u32 = i32::MAX as u32;

/// Numeric identity of the command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// Whom `user` means when no file is needed to say so: root, or two numbers.
pub(crate) fn numeric(user: &str) -> Option<User> {
    if matches!(user, "" | "0" | "root") {
        return Some(User::default());
    }
    let (uid, gid) = user.split_once(':')?;
    Some(User { uid: id(uid)?, gid: id(gid)?, groups: Vec::new() })
}

/// Resolves `user` by the text of the two files, each empty when the image has none.
///
/// # Errors
/// [`Error::InvalidSpec`] with the field `image` when a name is not listed.
pub(crate) fn resolve(user: &str, passwd: &str, group: &str) -> Result<User, Error> {
    if let Some(user) = numeric(user) {
        return Ok(user);
    }
    let (wanted, wanted_group) = match user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (user, None),
    };
    let unknown = |what, name: &str| {
        Error::invalid(
            "image",
            format!("its {what} {name:?} is neither a number nor in the image's /etc/{what}"),
        )
    };
    let account = entries(passwd).find(|entry| field(entry, 0) == wanted || same_id(field(entry, 2), wanted));
    let (name, uid, primary) = match &account {
        Some(entry) => (field(entry, 0), id(field(entry, 2)), id(field(entry, 3))),
        None => ("", id(wanted), Some(0)),
    };
    let (Some(uid), Some(primary)) = (uid, primary) else { return Err(unknown("passwd", wanted)) };
    if let Some(wanted) = wanted_group {
        let listed =
            entries(group).find(|entry| field(entry, 0) == wanted).and_then(|entry| id(field(&entry, 2)));
        let gid = listed.or_else(|| id(wanted)).ok_or_else(|| unknown("group", wanted))?;
        return Ok(User { uid, gid, groups: Vec::new() });
    }
    let member =
        |entry: &Vec<&str>| !name.is_empty() && field(entry, 3).split(',').any(|member| member == name);
    let groups = entries(group).filter(member).filter_map(|entry| id(field(&entry, 2))).collect();
    Ok(User { uid, gid: primary, groups })
}

fn entries(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split(':').collect())
}

fn field<'a>(entry: &[&'a str], position: usize) -> &'a str {
    entry.get(position).copied().unwrap_or_default()
}

fn same_id(listed: &str, wanted: &str) -> bool {
    id(wanted).is_some_and(|wanted| id(listed) == Some(wanted))
}

fn id(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|id| digits && *id <= MAX_ID)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\n# comment\nweb:x:33:44::/:/bin/false\nodd:x:no:1::/:\n";
    const GROUP: &str = "root:x:0:\nweb:x:44:\nlogs:x:55:web,root\nvideo:x:66:web\n";

    #[test]
    fn users_resolve_as_in_docker() {
        let check = |text: &str, uid, gid, groups: &[u32]| {
            let want = User { uid, gid, groups: groups.to_vec() };
            assert_eq!(resolve(text, PASSWD, GROUP).unwrap(), want, "{text}");
        };
        check("", 0, 0, &[]);
        check("root", 0, 0, &[]);
        check("web", 33, 44, &[55, 66]);
        check("33", 33, 44, &[55, 66]);
        check("1000", 1000, 0, &[]);
        check("1000:1001", 1000, 1001, &[]);
        check("web:logs", 33, 55, &[]);
        check("web:7", 33, 7, &[]);
        check("1000:logs", 1000, 55, &[]);
    }

    #[test]
    fn unknown_names_are_refused() {
        for (user, passwd, names) in [
            ("nobody", PASSWD, "nobody"),
            ("web:nogroup", PASSWD, "nogroup"),
            ("odd", PASSWD, "odd"),
            ("web", "", "web"),
            ("-1", PASSWD, "-1"),
            ("4294967295", PASSWD, "4294967295"),
            ("1:99999999999", PASSWD, "99999999999"),
        ] {
            let error = resolve(user, passwd, GROUP).unwrap_err().to_string();
            assert!(error.contains(names), "{user}: {error}");
        }
    }

    #[test]
    fn only_plain_numbers_and_root_need_no_file() {
        for user in ["", "0", "root", "5:6"] {
            assert!(numeric(user).is_some(), "{user}");
        }
        for user in ["5", "web", "web:5", "5:web", ":", "5:"] {
            assert!(numeric(user).is_none(), "{user}");
        }
    }
}

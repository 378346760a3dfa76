//! User of the command: the spec's user or the image's `USER`, resolved with the image's passwd and group
//! files.
//!
//! Source: Docker's rules: a name or number, optionally with `:` and a group; a number need not be listed.

use std::path::Path;

use containerd_client::types::Mount;
use warren_image::RunConfig;

use crate::container::ContainerSpec;
use crate::error::Error;
use crate::rootfs;

/// Linux reserves the upper half and -1.
const MAX_ID: u32 = i32::MAX as u32;

/// Numeric identity of the command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// The requested user, unresolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestedUser {
    user: String,
    /// Field of origin: `user`, or `image`.
    field: &'static str,
    /// Additional groups.
    groups: Vec<String>,
}

impl RequestedUser {
    /// The spec's user, else the image's.
    pub fn from_spec(spec: &ContainerSpec, image: &RunConfig) -> Self {
        Self::new(spec.user.as_deref(), spec.groups.clone(), image)
    }

    /// As [`RequestedUser::from_spec`], without a spec.
    pub fn new(user: Option<&str>, groups: Vec<String>, image: &RunConfig) -> Self {
        let (user, field) = user.map_or((image.user.as_str(), "image"), |user| (user, "user"));
        Self { user: user.to_owned(), field, groups }
    }

    /// Without an image, for a process of an existing container.
    pub fn named(user: &str) -> Self {
        Self { user: user.to_owned(), field: "user", groups: Vec::new() }
    }

    /// The identity if no file is needed: root, or two numbers, and no group by name.
    pub fn numeric(&self) -> Option<User> {
        let user = self.numeric_user()?;
        let groups = self.groups.iter().map(|group| id(group)).collect::<Option<_>>()?;
        Some(User { groups, ..user })
    }

    fn numeric_user(&self) -> Option<User> {
        let (uid, gid) = match self.user.as_str() {
            "" | "0" | "root" => (0, 0),
            numbers => numbers.split_once(':').and_then(|(uid, gid)| Some((id(uid)?, id(gid)?)))?,
        };
        Some(User { uid, gid, groups: Vec::new() })
    }

    /// Resolves the user with the text of the two files, each empty if the image has none.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`] with the field of the name that is not listed.
    pub fn resolve(&self, passwd: &str, group: &str) -> Result<User, Error> {
        let mut user = match self.numeric_user() {
            Some(user) => user,
            None => self.resolve_user(passwd, group)?,
        };
        for (place, name) in self.groups.iter().enumerate() {
            let gid =
                gid(name, group).ok_or_else(|| unknown_name(&format!("groups[{place}]"), "group", name))?;
            user.groups.push(gid);
        }
        Ok(user)
    }

    /// As [`RequestedUser::resolve`], with the files of the image below a snapshot.
    pub fn resolve_in(&self, mounts: &[Mount]) -> Result<User, Error> {
        let read = |path| {
            let unreadable = |error| {
                let (field, user) = self.source();
                Error::invalid_field(field, format!("cannot look up user {user:?}: {error}"))
            };
            Ok::<_, Error>(rootfs::read(mounts, Path::new(path)).map_err(unreadable)?.unwrap_or_default())
        };
        self.resolve(&read("etc/passwd")?, &read("etc/group")?)
    }

    fn resolve_user(&self, passwd: &str, group: &str) -> Result<User, Error> {
        let (desired, wanted_group) = match self.user.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (self.user.as_str(), None),
        };
        let account = parse_entries(passwd)
            .find(|entry| field(entry, 0) == desired || same_id(field(entry, 2), desired));
        let (name, uid, primary) = match &account {
            Some(entry) => (field(entry, 0), id(field(entry, 2)), id(field(entry, 3))),
            None => ("", id(desired), Some(0)),
        };
        let (Some(uid), Some(primary)) = (uid, primary) else {
            return Err(unknown_name(self.field, "passwd", desired));
        };
        if let Some(expected) = wanted_group {
            let gid = gid(expected, group).ok_or_else(|| unknown_name(self.field, "group", expected))?;
            return Ok(User { uid, gid, groups: Vec::new() });
        }
        let member =
            |entry: &Vec<&str>| !name.is_empty() && field(entry, 3).split(',').any(|member| member == name);
        let groups = parse_entries(group).filter(member).filter_map(|entry| id(field(&entry, 2))).collect();
        Ok(User { uid, gid: primary, groups })
    }

    /// Text and field of origin.
    pub fn source(&self) -> (&'static str, &str) {
        (self.field, &self.user)
    }
}

fn unknown_name(of: &str, what: &str, name: &str) -> Error {
    Error::invalid_field(of, format!("{name:?} is neither a number nor in the image's /etc/{what}"))
}

fn gid(desired: &str, group: &str) -> Option<u32> {
    let listed = parse_entries(group).find(|entry| field(entry, 0) == desired);
    listed.and_then(|entry| id(field(&entry, 2))).or_else(|| id(desired))
}

fn parse_entries(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split(':').collect())
}

fn field<'a>(entry: &[&'a str], position: usize) -> &'a str {
    entry.get(position).copied().unwrap_or_default()
}

fn same_id(listed: &str, desired: &str) -> bool {
    id(desired).is_some_and(|expected| id(listed) == Some(expected))
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

    fn requested(user: &str, groups: &[&str]) -> RequestedUser {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        RequestedUser { user: user.to_owned(), field: "image", groups }
    }

    #[test]
    fn users_resolve_like_docker() {
        let check = |text: &str, further: &[&str], uid, gid, groups: &[u32]| {
            let want = User { uid, gid, groups: groups.to_vec() };
            assert_eq!(requested(text, further).resolve(PASSWD, GROUP).unwrap(), want, "{text} {further:?}");
        };
        check("", &[], 0, 0, &[]);
        check("root", &[], 0, 0, &[]);
        check("web", &[], 33, 44, &[55, 66]);
        check("33", &[], 33, 44, &[55, 66]);
        check("1000", &[], 1000, 0, &[]);
        check("1000:1001", &[], 1000, 1001, &[]);
        check("web:logs", &[], 33, 55, &[]);
        check("web:7", &[], 33, 7, &[]);
        check("1000:logs", &[], 1000, 55, &[]);
        check("1000:1001", &["video", "7"], 1000, 1001, &[66, 7]);
        check("web", &["7"], 33, 44, &[55, 66, 7]);
        check("", &["9"], 0, 0, &[9]);
        check("", &["video"], 0, 0, &[66]);
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
            let error = requested(user, &[]).resolve(passwd, GROUP).unwrap_err().to_string();
            assert!(error.contains(names), "{user}: {error}");
        }
        let error = requested("root", &["video", "nogroup"]).resolve(PASSWD, GROUP).unwrap_err();
        assert!(matches!(&error, Error::InvalidSpec { field, .. } if field == "groups[1]"), "{error}");
        assert!(error.to_string().contains("nogroup"), "{error}");
    }

    #[test]
    fn spec_user_overrides_image() {
        let image = RunConfig { user: "web".into(), ..RunConfig::default() };
        let spec = crate::spec::fixtures::spec();
        assert_eq!(RequestedUser::from_spec(&spec, &image).source(), ("image", "web"));
        let spec = ContainerSpec { user: Some("5".into()), ..spec };
        assert_eq!(RequestedUser::from_spec(&spec, &image).source(), ("user", "5"));
    }

    #[test]
    fn only_plain_numbers_and_root_need_no_file() {
        for user in ["", "0", "root", "5:6"] {
            assert!(requested(user, &["7"]).numeric().is_some(), "{user}");
            assert!(requested(user, &["video"]).numeric().is_none(), "{user}");
        }
        for user in ["5", "web", "web:5", "5:web", ":", "5:"] {
            assert!(requested(user, &[]).numeric().is_none(), "{user}");
        }
    }
}

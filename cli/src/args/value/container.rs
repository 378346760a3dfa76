//! What a container gets beside its image, and what a machine becomes, as people write it.

use std::net::Ipv4Addr;

use warren_types::{Device, DeviceAccess, HostEntry, NodeRole, Ulimit};

use super::parts::parts;

/// How tasks are spread. Which modes a service can have is known here, how many tasks it has is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModeName {
    /// As many as are wanted.
    Replicated,
    /// One per node.
    Global,
}

pub fn mode(text: &str) -> Result<ModeName, String> {
    match text {
        "replicated" => Ok(ModeName::Replicated),
        "global" => Ok(ModeName::Global),
        "job" | "global-job" | "cron" => {
            Err(format!("{text} is not supported by this version; replicated and global are"))
        }
        _ => Err("give replicated or global".to_owned()),
    }
}

/// What a token lets somebody become.
pub fn role(text: &str) -> Result<NodeRole, String> {
    match text {
        "worker" => Ok(NodeRole::Worker),
        "manager" => Ok(NodeRole::Manager),
        "admin" | "viewer" => Err(format!("{text} is not supported by this version; worker and manager are")),
        _ => Err("give worker or manager".to_owned()),
    }
}

/// `NAME:IP`.
pub fn host(text: &str) -> Result<HostEntry, String> {
    let (name, address) = text.split_once(':').ok_or("give NAME:IP, like db:10.0.0.7")?;
    if address.contains(':') {
        return Err("IPv6 addresses are not supported by this version; give an IPv4 address".to_owned());
    }
    let address: Ipv4Addr = address.parse().map_err(|_| format!("{address:?} is not an IPv4 address"))?;
    Ok(HostEntry { name: name.to_owned(), address })
}

/// Lines of `/etc/hosts` to take away: all of a name, or one.
pub fn host_removal(text: &str) -> Result<(String, Option<Ipv4Addr>), String> {
    match text.contains(':') {
        true => host(text).map(|entry| (entry.name, Some(entry.address))),
        false if text.is_empty() => Err("give NAME or NAME:IP".to_owned()),
        false => Ok((text.to_owned(), None)),
    }
}

/// `SOURCE[:TARGET][:rwm]`; without a target it is where it is on the node.
pub fn device(text: &str) -> Result<Device, String> {
    let parts = parts(text);
    let (source, target, access) = match parts.as_slice() {
        [source] => (source, source, None),
        [source, target] if target.starts_with('/') => (source, target, None),
        [source, access] => (source, source, Some(access)),
        [source, target, access] => (source, target, Some(access)),
        _ => return Err("has too many colons; write \\: for one that belongs to a path".to_owned()),
    };
    if source.is_empty() {
        return Err("give a device's path, like /dev/fuse".to_owned());
    }
    let access = access.map_or(Ok(DeviceAccess::FULL), |access| access.parse())?;
    Ok(Device { source: source.clone(), target: target.clone(), access })
}

/// `NAME=SOFT[:HARD]`; a single number is both. `unlimited` is no bound.
pub fn ulimit(text: &str) -> Result<Ulimit, String> {
    let (name, bounds) = text.split_once('=').ok_or("give NAME=SOFT[:HARD], like nofile=1024:4096")?;
    let (soft, hard) = bounds.split_once(':').unwrap_or((bounds, bounds));
    Ok(Ulimit { name: name.parse()?, soft: bound(soft)?, hard: bound(hard)? })
}

fn bound(text: &str) -> Result<Option<u64>, String> {
    match text {
        "unlimited" | "-1" => Ok(None),
        number => number
            .parse()
            .map(Some)
            .map_err(|_| format!("{number:?} is not a bound; give a number, or unlimited")),
    }
}

/// `KEY=VALUE`, as in sysctl(8).
pub fn sysctl(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("give KEY=VALUE, like net.core.somaxconn=1024")?;
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_roles_of_later_versions_are_told_from_typing_errors() {
        assert_eq!(mode("replicated"), Ok(ModeName::Replicated));
        assert_eq!(mode("global"), Ok(ModeName::Global));
        let later = "job is not supported by this version; replicated and global are";
        assert_eq!(mode("job").unwrap_err(), later);
        assert_eq!(mode("x").unwrap_err(), "give replicated or global");
        assert_eq!(role("worker"), Ok(NodeRole::Worker));
        assert_eq!(role("manager"), Ok(NodeRole::Manager));
        for later in ["admin", "viewer"] {
            assert!(role(later).unwrap_err().contains("is not supported by this version"), "{later}");
        }
        assert_eq!(role("x").unwrap_err(), "give worker or manager");
    }

    #[test]
    fn hosts_are_names_with_addresses() {
        let entry = HostEntry { name: "db".into(), address: Ipv4Addr::new(10, 0, 0, 7) };
        assert_eq!(host("db:10.0.0.7"), Ok(entry.clone()));
        assert_eq!(host_removal("db:10.0.0.7"), Ok(("db".into(), Some(entry.address))));
        assert_eq!(host_removal("db"), Ok(("db".into(), None)));
        for (bad, why) in [
            ("db", "give NAME:IP"),
            ("db:x", "\"x\" is not an IPv4 address"),
            ("db:::1", "IPv6 addresses are not supported"),
        ] {
            assert!(host(bad).unwrap_err().contains(why), "{bad}");
        }
        assert!(host_removal("").is_err() && host_removal("db:x").is_err());
    }

    #[test]
    fn devices_may_have_another_path_and_less_access_inside() {
        let check = |text, source: &str, target: &str, access: &str| {
            let (source, target) = (source.to_owned(), target.to_owned());
            assert_eq!(
                device(text),
                Ok(Device { source, target, access: access.parse().unwrap() }),
                "{text}"
            );
        };
        check("/dev/fuse", "/dev/fuse", "/dev/fuse", "rwm");
        check("/dev/sda:/dev/xvda", "/dev/sda", "/dev/xvda", "rwm");
        check("/dev/sda:r", "/dev/sda", "/dev/sda", "r");
        check("/dev/sda:/dev/xvda:rw", "/dev/sda", "/dev/xvda", "rw");
        check(r"/dev/a\:b", "/dev/a:b", "/dev/a:b", "rwm");
        for (bad, why) in [
            ("", "give a device's path"),
            ("/dev/sda:x", "is no device access"),
            ("/dev/sda:/dev/xvda:", "no access at all"),
            ("/dev/sda:/dev/xvda:rr", "says r twice"),
            ("a:b:c:d", "too many colons"),
        ] {
            let found = device(bad).unwrap_err();
            assert!(found.contains(why), "{bad}: {found}");
        }
    }

    #[test]
    fn ulimits_have_one_bound_or_two() {
        let check = |text, soft, hard| {
            assert_eq!(ulimit(text), Ok(Ulimit { name: "nofile".parse().unwrap(), soft, hard }), "{text}");
        };
        check("nofile=1024", Some(1024), Some(1024));
        check("nofile=1024:4096", Some(1024), Some(4096));
        check("nofile=0:unlimited", Some(0), None);
        check("nofile=-1", None, None);
        for (bad, why) in [
            ("nofile", "give NAME=SOFT[:HARD]"),
            ("files=1", "\"files\" is no ulimit; give one of as,"),
            ("nofile=", "\"\" is not a bound"),
            ("nofile=1:", "\"\" is not a bound"),
            ("nofile=-2", "\"-2\" is not a bound"),
        ] {
            let found = ulimit(bad).unwrap_err();
            assert!(found.contains(why), "{bad}: {found}");
        }
    }

    #[test]
    fn sysctls_are_pairs() {
        assert_eq!(sysctl("net.core.somaxconn=1024"), Ok(("net.core.somaxconn".into(), "1024".into())));
        assert_eq!(sysctl("kernel.domainname=a=b"), Ok(("kernel.domainname".into(), "a=b".into())));
        assert!(sysctl("net.core.somaxconn").unwrap_err().starts_with("give KEY=VALUE"));
    }
}

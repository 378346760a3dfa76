//! Parsers for settings of containers, and for roles.

use std::net::Ipv4Addr;

use warren_types::{Device, DeviceAccess, HostEntry, NodeRole, Ulimit};

use super::split::split_colons;

/// Scheduling mode of a service, without the number of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModeName {
    /// A number of replicas.
    Replicated,
    /// One task per eligible node.
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

/// Role that a join token grants.
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

/// Entries of `/etc/hosts` to remove: all of a name, or one.
pub fn host_removal(text: &str) -> Result<(String, Option<Ipv4Addr>), String> {
    match text.contains(':') {
        true => host(text).map(|entry| (entry.name, Some(entry.address))),
        false if text.is_empty() => Err("give NAME or NAME:IP".to_owned()),
        false => Ok((text.to_owned(), None)),
    }
}

/// `SOURCE[:TARGET][:rwm]`; the target defaults to the source.
pub fn device(text: &str) -> Result<Device, String> {
    let parts = split_colons(text);
    let (source, target, access) = match parts.as_slice() {
        [source] => (source, source, None),
        [source, target] if target.starts_with('/') => (source, target, None),
        [source, access] => (source, source, Some(access)),
        [source, target, access] => (source, target, Some(access)),
        _ => return Err("has too many colons; escape a colon in a path as \\:".to_owned()),
    };
    if source.is_empty() {
        return Err("give the path of a device, like /dev/fuse".to_owned());
    }
    let access = access.map_or(Ok(DeviceAccess::FULL), |access| access.parse())?;
    Ok(Device { source: source.clone(), target: target.clone(), access })
}

/// `NAME=SOFT[:HARD]`; a single number is both. `unlimited` is no limit.
pub fn ulimit(text: &str) -> Result<Ulimit, String> {
    let (name, bounds) = text.split_once('=').ok_or("give NAME=SOFT[:HARD], like nofile=1024:4096")?;
    let (soft, hard) = bounds.split_once(':').unwrap_or((bounds, bounds));
    Ok(Ulimit { name: name.parse()?, soft: ulimit_bound(soft)?, hard: ulimit_bound(hard)? })
}

fn ulimit_bound(text: &str) -> Result<Option<u64>, String> {
    match text {
        "unlimited" | "-1" => Ok(None),
        number => number
            .parse()
            .map(Some)
            .map_err(|_| format!("{number:?} is not a limit; give a number, or unlimited")),
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
    fn unknown_modes_and_roles_are_refused() {
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
            ("", "give the path of a device"),
            ("/dev/sda:x", "is not a device access"),
            ("/dev/sda:/dev/xvda:", "no access at all"),
            ("/dev/sda:/dev/xvda:rr", "repeats r"),
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
            ("files=1", "\"files\" is not a ulimit; give one of as,"),
            ("nofile=", "\"\" is not a limit"),
            ("nofile=1:", "\"\" is not a limit"),
            ("nofile=-2", "\"-2\" is not a limit"),
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

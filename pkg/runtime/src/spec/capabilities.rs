//! Which capabilities a container has: Docker's default ones, and what is added and dropped.

use oci_spec::runtime as oci;
use oci_spec::runtime::Capability as Cap;

use crate::container::ContainerSpec;
use crate::error::Error;

/// Let ordinary server software run as root of its container and no more.
const DEFAULT: [Cap; 14] = [
    Cap::Chown,
    Cap::DacOverride,
    Cap::Fsetid,
    Cap::Fowner,
    Cap::Mknod,
    Cap::NetRaw,
    Cap::Setgid,
    Cap::Setuid,
    Cap::Setfcap,
    Cap::Setpcap,
    Cap::NetBindService,
    Cap::SysChroot,
    Cap::Kill,
    Cap::AuditWrite,
];

/// Each at its number in the kernel (`linux/capability.h`).
const BY_NUMBER: [Cap; 41] = [
    Cap::Chown,
    Cap::DacOverride,
    Cap::DacReadSearch,
    Cap::Fowner,
    Cap::Fsetid,
    Cap::Kill,
    Cap::Setgid,
    Cap::Setuid,
    Cap::Setpcap,
    Cap::LinuxImmutable,
    Cap::NetBindService,
    Cap::NetBroadcast,
    Cap::NetAdmin,
    Cap::NetRaw,
    Cap::IpcLock,
    Cap::IpcOwner,
    Cap::SysModule,
    Cap::SysRawio,
    Cap::SysChroot,
    Cap::SysPtrace,
    Cap::SysPacct,
    Cap::SysAdmin,
    Cap::SysBoot,
    Cap::SysNice,
    Cap::SysResource,
    Cap::SysTime,
    Cap::SysTtyConfig,
    Cap::Mknod,
    Cap::Lease,
    Cap::AuditWrite,
    Cap::AuditControl,
    Cap::Setfcap,
    Cap::MacOverride,
    Cap::MacAdmin,
    Cap::Syslog,
    Cap::WakeAlarm,
    Cap::BlockSuspend,
    Cap::AuditRead,
    Cap::Perfmon,
    Cap::Bpf,
    Cap::CheckpointRestore,
];

/// One entry of a list of capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Every capability that can be given.
    All,
    One(Cap),
}

impl Wish {
    /// Reads a name with or without `CAP_`, in any case, or `ALL`.
    pub fn parse(text: &str) -> Option<Self> {
        let upper = text.to_ascii_uppercase();
        if upper == "ALL" {
            return Some(Self::All);
        }
        upper.strip_prefix("CAP_").unwrap_or(&upper).parse().ok().map(Self::One)
    }
}

/// Capabilities of one process, ordered by their numbers so that a document is always written alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Set(u64);

impl Set {
    /// Every capability that this crate knows.
    pub const EVERY: Self = Self((1 << BY_NUMBER.len()) - 1);

    /// The set that the kernel writes as this mask; numbers it may learn later are left out.
    pub fn from_mask(mask: u64) -> Self {
        Self(mask & Self::EVERY.0)
    }

    /// What `CapBnd:` says in a `/proc/PID/status`: what the process, and so a container, can have at most.
    pub fn bounding(status: &str) -> Option<Self> {
        let mask = status.lines().find_map(|line| line.strip_prefix("CapBnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok().map(Self::from_mask)
    }

    fn of(caps: &[Cap]) -> Self {
        Self(caps.iter().map(|cap| bit(*cap)).sum())
    }

    pub fn has(self, cap: Cap) -> bool {
        self.0 & bit(cap) != 0
    }

    fn to_oci(self) -> oci::Capabilities {
        BY_NUMBER.into_iter().filter(|cap| self.has(*cap)).collect()
    }
}

/// The numbers of a list of capabilities, a bit each.
pub(crate) fn bits(list: &oci::Capabilities) -> u64 {
    list.iter().map(|cap| bit(*cap)).fold(0, |all, bit| all | bit)
}

fn bit(cap: Cap) -> u64 {
    let number = BY_NUMBER.iter().position(|each| *each == cap);
    1 << number.expect("every capability has a number")
}

/// What the container gets. `most` is what the machine can give, and what `ALL` means.
///
/// # Errors
/// [`Error::InvalidSpec`] when one is asked for by name that the machine cannot give.
pub(super) fn granted(spec: &ContainerSpec, most: Set) -> Result<Set, Error> {
    if spec.privileged {
        return Ok(most);
    }
    let named = |names: &[String]| -> (bool, Vec<(usize, Cap)>) {
        let wishes: Vec<Option<Wish>> = names.iter().map(|name| Wish::parse(name)).collect();
        let one = |(place, wish): (usize, &Option<Wish>)| match wish {
            Some(Wish::One(cap)) => Some((place, *cap)),
            Some(Wish::All) | None => None,
        };
        (wishes.contains(&Some(Wish::All)), wishes.iter().enumerate().filter_map(one).collect())
    };
    let ((add_all, added), (drop_all, dropped)) = (named(&spec.cap_add), named(&spec.cap_drop));
    if let Some((place, cap)) = added.iter().find(|(_, cap)| !most.has(*cap)) {
        let reason = format!("this node cannot give {cap}, which it does not have itself");
        return Err(Error::invalid(format!("cap_add[{place}]"), reason));
    }
    let sum = |caps: &[(usize, Cap)]| caps.iter().fold(0, |mask, (_, cap)| mask | bit(*cap));
    let (added, dropped) = (sum(&added), sum(&dropped));
    Ok(Set(match (add_all, drop_all) {
        (true, _) => most.0 & !dropped,
        (false, true) => added,
        // A default that a nested machine cannot give was not asked for by anybody.
        (false, false) => (Set::of(&DEFAULT).0 & most.0 & !dropped) | added,
    }))
}

/// The sets of the first process. None is inherited: a program gets them by being root, or by its file.
pub(super) fn sets(granted: Set) -> oci::LinuxCapabilities {
    let set = granted.to_oci();
    let mut capabilities = oci::LinuxCapabilities::default();
    capabilities
        .set_bounding(Some(set.clone()))
        .set_effective(Some(set.clone()))
        .set_permitted(Some(set))
        .set_inheritable(None)
        .set_ambient(None);
    capabilities
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::spec::samples::spec;

    #[test]
    fn every_capability_has_one_number_and_a_name() {
        let unique: BTreeSet<u64> = BY_NUMBER.iter().map(|cap| bit(*cap)).collect();
        assert_eq!(unique.len(), BY_NUMBER.len());
        for cap in BY_NUMBER {
            assert_eq!(Wish::parse(&format!("cap_{cap}")), Some(Wish::One(cap)), "{cap}");
        }
        assert_eq!(Wish::parse("sys_admin"), Some(Wish::One(Cap::SysAdmin)));
        for unknown in ["", "CAP_", "FLY", "CAP_CAP_CHOWN", "CAP_ALL"] {
            assert_eq!(Wish::parse(unknown), None, "{unknown}");
        }
        assert!(Set(1 << 12).has(Cap::NetAdmin) && Set(1 << 40).has(Cap::CheckpointRestore));
    }

    #[test]
    fn the_bounding_set_is_read_from_the_kernels_words() {
        let status = "CapEff:\t0000000000000000\nCapBnd:\t000001fffeffffff\n";
        let most = Set::bounding(status).unwrap();
        assert!(most.has(Cap::SysAdmin) && !most.has(Cap::SysResource));
        assert_eq!(Set::bounding("CapBnd:\tfffffffffffffffff"), None);
        assert_eq!(Set::bounding(""), None);
    }

    #[test]
    fn adding_and_dropping_follow_dockers_table() {
        const MOST: Set = Set((1 << 41) - 1 - (1 << 24));
        let check = |add: &[&str], drop: &[&str], want: u64| {
            let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
            let spec = ContainerSpec { cap_add: words(add), cap_drop: words(drop), ..spec() };
            assert_eq!(granted(&spec, MOST).unwrap(), Set(want), "+{add:?} -{drop:?}");
        };
        let default = 0xa804_25fb;
        check(&[], &[], default);
        check(&["NET_ADMIN", "cap_net_admin"], &[], default | 1 << 12);
        check(&[], &["CAP_CHOWN"], default & !1);
        check(&["CHOWN"], &["ALL"], 1);
        check(&[], &["ALL"], 0);
        check(&["ALL"], &[], MOST.0);
        check(&["ALL"], &["CHOWN"], MOST.0 & !1);
        let privileged = ContainerSpec { privileged: true, cap_drop: vec!["ALL".into()], ..spec() };
        assert_eq!(granted(&privileged, MOST).unwrap(), MOST);
        let poor = Set(MOST.0 & !1);
        assert_eq!(granted(&spec(), poor).unwrap(), Set(default & !1));
        let beyond = ContainerSpec { cap_add: vec!["CHOWN".into(), "SYS_RESOURCE".into()], ..spec() };
        let error = granted(&beyond, MOST).unwrap_err();
        assert!(matches!(&error, Error::InvalidSpec { field, .. } if field == "cap_add[1]"), "{error}");
    }
}

//! Capabilities of a container: Docker's defaults, additions and drops.

use oci_spec::runtime as oci;
use oci_spec::runtime::Capability as Cap;

use crate::container::{CapabilityEntry, ContainerSpec};
use crate::error::Error;

/// Docker's defaults: enough for ordinary server software as root of its container.
const DEFAULT_CAPABILITIES: [Cap; 14] = [
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

/// Capabilities ordered by number, so that equal sets give equal documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CapabilitySet(u64);

impl CapabilitySet {
    /// All capabilities known to this crate.
    pub const ALL: Self = Self((1 << BY_NUMBER.len()) - 1);

    /// Parses a kernel mask; unknown numbers are ignored.
    pub fn from_mask(mask: u64) -> Self {
        Self(mask & Self::ALL.0)
    }

    /// `CapBnd:` of a `/proc/PID/status`: the maximum of the process, and so of its containers.
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

/// A list of capabilities as one bit per number.
pub(crate) fn bits(list: &oci::Capabilities) -> u64 {
    list.iter().map(|cap| bit(*cap)).fold(0, |all, bit| all | bit)
}

fn bit(cap: Cap) -> u64 {
    let number = BY_NUMBER.iter().position(|each| *each == cap);
    1 << number.expect("every capability has a number")
}

/// The capabilities of the container. `most` is the maximum of the machine, and the meaning of `ALL`.
///
/// # Errors
/// [`Error::InvalidSpec`] for a capability added by name that the machine lacks.
pub(super) fn granted(spec: &ContainerSpec, most: CapabilitySet) -> Result<CapabilitySet, Error> {
    if spec.privileged {
        return Ok(most);
    }
    let named = |names: &[String]| -> (bool, Vec<(usize, Cap)>) {
        let entries: Vec<Option<CapabilityEntry>> =
            names.iter().map(|name| CapabilityEntry::parse(name)).collect();
        let one = |(place, request): (usize, &Option<CapabilityEntry>)| match request {
            Some(CapabilityEntry::One(cap)) => Some((place, *cap)),
            Some(CapabilityEntry::All) | None => None,
        };
        (entries.contains(&Some(CapabilityEntry::All)), entries.iter().enumerate().filter_map(one).collect())
    };
    let ((add_all, added), (drop_all, dropped)) = (named(&spec.cap_add), named(&spec.cap_drop));
    if let Some((place, cap)) = added.iter().find(|(_, cap)| !most.has(*cap)) {
        let reason = format!("this node does not have {cap}");
        return Err(Error::invalid_field(format!("cap_add[{place}]"), reason));
    }
    let sum = |caps: &[(usize, Cap)]| caps.iter().fold(0, |mask, (_, cap)| mask | bit(*cap));
    let (added, dropped) = (sum(&added), sum(&dropped));
    Ok(CapabilitySet(match (add_all, drop_all) {
        (true, _) => most.0 & !dropped,
        (false, true) => added,
        // Missing defaults are ignored: on a nested machine they were not requested.
        (false, false) => (CapabilitySet::of(&DEFAULT_CAPABILITIES).0 & most.0 & !dropped) | added,
    }))
}

/// The sets of the first process. None is inheritable: a program gets them as root, or by its file.
pub(super) fn oci_sets(granted: CapabilitySet) -> oci::LinuxCapabilities {
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
    use crate::spec::fixtures::spec;

    #[test]
    fn capability_numbers_and_names_are_unique() {
        let unique: BTreeSet<u64> = BY_NUMBER.iter().map(|cap| bit(*cap)).collect();
        assert_eq!(unique.len(), BY_NUMBER.len());
        for cap in BY_NUMBER {
            assert_eq!(
                CapabilityEntry::parse(&format!("cap_{cap}")),
                Some(CapabilityEntry::One(cap)),
                "{cap}"
            );
        }
        assert_eq!(CapabilityEntry::parse("sys_admin"), Some(CapabilityEntry::One(Cap::SysAdmin)));
        for unknown in ["", "CAP_", "FLY", "CAP_CAP_CHOWN", "CAP_ALL"] {
            assert_eq!(CapabilityEntry::parse(unknown), None, "{unknown}");
        }
        assert!(
            CapabilitySet(1 << 12).has(Cap::NetAdmin) && CapabilitySet(1 << 40).has(Cap::CheckpointRestore)
        );
    }

    #[test]
    fn bounding_set_is_parsed() {
        let status = "CapEff:\t0000000000000000\nCapBnd:\t000001fffeffffff\n";
        let most = CapabilitySet::bounding(status).unwrap();
        assert!(most.has(Cap::SysAdmin) && !most.has(Cap::SysResource));
        assert_eq!(CapabilitySet::bounding("CapBnd:\tfffffffffffffffff"), None);
        assert_eq!(CapabilitySet::bounding(""), None);
    }

    #[test]
    fn adding_and_dropping_follow_dockers_table() {
        const MOST: CapabilitySet = CapabilitySet((1 << 41) - 1 - (1 << 24));
        let check = |add: &[&str], drop: &[&str], want: u64| {
            let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
            let spec = ContainerSpec { cap_add: words(add), cap_drop: words(drop), ..spec() };
            assert_eq!(granted(&spec, MOST).unwrap(), CapabilitySet(want), "+{add:?} -{drop:?}");
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
        let poor = CapabilitySet(MOST.0 & !1);
        assert_eq!(granted(&spec(), poor).unwrap(), CapabilitySet(default & !1));
        let beyond = ContainerSpec { cap_add: vec!["CHOWN".into(), "SYS_RESOURCE".into()], ..spec() };
        let error = granted(&beyond, MOST).unwrap_err();
        assert!(matches!(&error, Error::InvalidSpec { field, .. } if field == "cap_add[1]"), "{error}");
    }
}

//! Settings of the cluster that users change.

use std::time::Duration;

use ipnet::Ipv4Net;

use crate::spec::MAX_REPLICAS;
use crate::{
    AdmissionPolicy, DataPlane, UserNamespace, VerificationChange, VerificationSettings, Violation,
    Violations,
};

/// The most ended tasks of a slot that can be kept.
const MAX_TASK_HISTORY_LIMIT: u32 = 100;
/// How long certificates of nodes and managers are valid by default.
pub const DEFAULT_NODE_CERTIFICATE_LIFETIME: Duration = Duration::from_secs(90 * 24 * 60 * 60);
/// How long they are valid at most.
pub const MAX_NODE_CERTIFICATE_LIFETIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// How long they are valid at least.
const MIN_NODE_CERTIFICATE_LIFETIME: Duration = Duration::from_secs(60 * 60);

/// Settings of the cluster. A new cluster has the defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSettings {
    /// A service with more replicas is only accepted if its user insists.
    pub max_replicas_per_service: u32,
    /// How many ended tasks of a slot keep their record and their logs.
    pub task_history_limit: u32,
    /// What carries packets between nodes.
    pub data_plane: DataPlane,
    /// Which nodes are verified, and how.
    pub verification: VerificationSettings,
    /// What services of operators may do.
    pub admission_policy: AdmissionPolicy,
    /// The user namespace of services that name none, as of their newest revision.
    pub default_user_namespace: UserNamespace,
    /// Programs get no new privileges in services that say nothing about it, as of their newest revision.
    pub no_new_privileges: bool,
    /// How long certificates of nodes and managers are valid that are issued from now on.
    pub node_certificate_lifetime: Duration,
}

impl Default for ClusterSettings {
    fn default() -> Self {
        Self {
            max_replicas_per_service: 10_000,
            task_history_limit: 5,
            data_plane: DataPlane::default(),
            verification: VerificationSettings::default(),
            admission_policy: AdmissionPolicy::default(),
            default_user_namespace: UserNamespace::default(),
            no_new_privileges: false,
            node_certificate_lifetime: DEFAULT_NODE_CERTIFICATE_LIFETIME,
        }
    }
}

/// A change of [`ClusterSettings`]; `None` keeps the value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterSettingsChange {
    /// See [`ClusterSettings::max_replicas_per_service`].
    pub max_replicas_per_service: Option<u32>,
    /// See [`ClusterSettings::task_history_limit`].
    pub task_history_limit: Option<u32>,
    /// See [`ClusterSettings::data_plane`].
    pub data_plane: Option<DataPlane>,
    /// See [`ClusterSettings::verification`].
    pub verification: VerificationChange,
    /// See [`ClusterSettings::admission_policy`]; replaced as a whole.
    pub admission_policy: Option<AdmissionPolicy>,
    /// See [`ClusterSettings::default_user_namespace`].
    pub default_user_namespace: Option<UserNamespace>,
    /// See [`ClusterSettings::no_new_privileges`].
    pub no_new_privileges: Option<bool>,
    /// See [`ClusterSettings::node_certificate_lifetime`].
    pub node_certificate_lifetime: Option<Duration>,
    /// Address ranges that the cluster gets beside those that it has.
    pub range_add: Vec<Ipv4Net>,
}

impl ClusterSettings {
    /// The settings after the change.
    ///
    /// # Errors
    /// All values that are out of range; paths are relative to the settings.
    pub fn changed(&self, change: &ClusterSettingsChange) -> Result<Self, Violations> {
        let ClusterSettingsChange {
            max_replicas_per_service,
            task_history_limit,
            data_plane,
            verification,
            admission_policy,
            default_user_namespace,
            no_new_privileges,
            node_certificate_lifetime,
            range_add: _,
        } = change;
        let changed = Self {
            max_replicas_per_service: max_replicas_per_service.unwrap_or(self.max_replicas_per_service),
            task_history_limit: task_history_limit.unwrap_or(self.task_history_limit),
            data_plane: data_plane.unwrap_or(self.data_plane),
            verification: self.verification.changed(verification),
            admission_policy: admission_policy.as_ref().unwrap_or(&self.admission_policy).clone(),
            default_user_namespace: default_user_namespace.unwrap_or(self.default_user_namespace),
            no_new_privileges: no_new_privileges.unwrap_or(self.no_new_privileges),
            node_certificate_lifetime: node_certificate_lifetime.unwrap_or(self.node_certificate_lifetime),
        };
        changed.validate().into_result(changed)
    }

    fn validate(&self) -> Violations {
        let Self {
            max_replicas_per_service,
            task_history_limit,
            data_plane: _,
            verification,
            admission_policy,
            default_user_namespace: _,
            no_new_privileges: _,
            node_certificate_lifetime: lifetime,
        } = self;
        let ranges = [
            ("maxReplicasPerService", *max_replicas_per_service, 1..=MAX_REPLICAS),
            ("taskHistoryLimit", *task_history_limit, 0..=MAX_TASK_HISTORY_LIMIT),
        ];
        let outside = ranges.into_iter().filter(|(_, value, range)| !range.contains(value));
        let violation = |(path, value, range): (&str, u32, std::ops::RangeInclusive<u32>)| {
            Violation::new(
                path,
                format!("{value} is out of range; give {} to {}", range.start(), range.end()),
            )
        };
        let mut violations = Violations(outside.map(violation).collect());
        if !(MIN_NODE_CERTIFICATE_LIFETIME..=MAX_NODE_CERTIFICATE_LIFETIME).contains(lifetime) {
            let why = format!("{lifetime:?} is out of range; give 1h to 365d");
            violations.add("nodeCertificateLifetime", why);
        }
        verification.validate(&mut violations);
        violations.nest("admissionPolicy", admission_policy.validate());
        violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unset_values_are_kept() {
        let before = ClusterSettings::default();
        assert_eq!(before.changed(&ClusterSettingsChange::default()).unwrap(), before);
        let change = ClusterSettingsChange { task_history_limit: Some(0), ..Default::default() };
        let after = before.changed(&change).unwrap();
        assert_eq!(after, ClusterSettings { task_history_limit: 0, ..before.clone() });
        let change = ClusterSettingsChange { data_plane: Some(DataPlane::Wireguard), ..Default::default() };
        let encrypted = after.changed(&change).unwrap();
        assert_eq!(encrypted, ClusterSettings { data_plane: DataPlane::Wireguard, ..after.clone() });
        let private = Some(UserNamespace::Private);
        let change = ClusterSettingsChange { default_user_namespace: private, ..Default::default() };
        let isolated = after.changed(&change).unwrap();
        assert_eq!(isolated.default_user_namespace, UserNamespace::Private);
        let hour = Some(Duration::from_secs(3600));
        let change = ClusterSettingsChange { node_certificate_lifetime: hour, ..Default::default() };
        let shorter = isolated.changed(&change).unwrap();
        assert_eq!(shorter.node_certificate_lifetime, Duration::from_secs(3600));
        let change = ClusterSettingsChange { no_new_privileges: Some(true), ..Default::default() };
        let restricted = shorter.changed(&change).unwrap();
        assert!(restricted.no_new_privileges && !shorter.no_new_privileges);
        assert_eq!(restricted.changed(&ClusterSettingsChange::default()).unwrap(), restricted);
    }

    #[test]
    fn values_out_of_range_are_refused_with_their_paths() {
        let refused = |max_replicas_per_service, task_history_limit| {
            let change =
                ClusterSettingsChange { max_replicas_per_service, task_history_limit, ..Default::default() };
            ClusterSettings::default().changed(&change).unwrap_err().to_string()
        };
        assert_eq!(
            refused(Some(0), Some(101)),
            "maxReplicasPerService: 0 is out of range; give 1 to 1000000; \
             taskHistoryLimit: 101 is out of range; give 0 to 100"
        );
        assert_eq!(
            refused(Some(1_000_001), None),
            "maxReplicasPerService: 1000001 is out of range; give 1 to 1000000"
        );
        for lifetime in [Duration::from_secs(3599), MAX_NODE_CERTIFICATE_LIFETIME + Duration::from_secs(1)] {
            let change =
                ClusterSettingsChange { node_certificate_lifetime: Some(lifetime), ..Default::default() };
            let refused = ClusterSettings::default().changed(&change).unwrap_err().to_string();
            let expected = format!("nodeCertificateLifetime: {lifetime:?} is out of range; give 1h to 365d");
            assert_eq!(refused, expected);
        }
        let verification = VerificationChange {
            remove_after: Some(10_001),
            timeout: Some(Duration::from_millis(999)),
            ..Default::default()
        };
        let change = ClusterSettingsChange { verification, ..Default::default() };
        assert_eq!(
            ClusterSettings::default().changed(&change).unwrap_err().to_string(),
            "verifyRemoveAfter: 10001 is out of range; give 0 to 10000; \
             verifyTimeout: 999ms is out of range; give 1s to 1h"
        );
    }
}

//! Settings of the cluster.

use warren_types::{
    AdmissionPolicy, AdmissionRules, ClusterSettings, ClusterSettingsChange, SignatureRule,
    VerificationChange, VerificationSettings, Violation, Violations,
};

use super::fields::FieldReader;
use super::wire_form::{WireForm, field, or_default, read_field, required_messages, wire_structs};
use crate::v1;

wire_structs! {
    AdmissionPolicy as AdmissionPolicy { operator by or_default, signatures };
    SignatureRule as SignatureRule { registry, keys };
    AdmissionRules as AdmissionRules {
        privileged, host_binds, host_network, cap_add, devices, unconfined_seccomp, unconfined_apparmor,
        min_oom_score_adj, metadata, bootstrap, registries, limits by or_default, max_replicas
    };
}

impl From<&ClusterSettings> for v1::ClusterSettings {
    fn from(settings: &ClusterSettings) -> Self {
        let ClusterSettings {
            max_replicas_per_service,
            task_history_limit,
            data_plane,
            verification,
            admission_policy,
            default_user_namespace,
            no_new_privileges,
            node_certificate_lifetime,
        } = settings;
        Self {
            max_replicas_per_service: Some(*max_replicas_per_service),
            task_history_limit: Some(*task_history_limit),
            range_add: Vec::new(),
            data_plane: Some(data_plane.to_wire()),
            verification: Some(verification.to_wire()),
            admission_policy: Some(admission_policy.to_wire()),
            default_user_namespace: Some(default_user_namespace.to_wire()),
            no_new_privileges: Some(*no_new_privileges),
            node_certificate_lifetime_ms: Some(node_certificate_lifetime.to_wire()),
        }
    }
}

impl From<&ClusterSettingsChange> for v1::ClusterSettings {
    fn from(change: &ClusterSettingsChange) -> Self {
        let ClusterSettingsChange {
            max_replicas_per_service,
            task_history_limit,
            data_plane,
            verification,
            admission_policy,
            default_user_namespace,
            no_new_privileges,
            node_certificate_lifetime,
            range_add,
        } = change;
        Self {
            max_replicas_per_service: *max_replicas_per_service,
            task_history_limit: *task_history_limit,
            range_add: range_add.to_wire(),
            data_plane: data_plane.to_wire(),
            verification: or_default::to_wire(verification),
            admission_policy: admission_policy.to_wire(),
            default_user_namespace: default_user_namespace.to_wire(),
            no_new_privileges: *no_new_privileges,
            node_certificate_lifetime_ms: node_certificate_lifetime.to_wire(),
        }
    }
}

impl WireForm<v1::ClusterSettings> for ClusterSettingsChange {
    fn to_wire(&self) -> v1::ClusterSettings {
        self.into()
    }

    fn from_wire(wire: v1::ClusterSettings) -> Result<Self, Violations> {
        let v1::ClusterSettings {
            max_replicas_per_service,
            task_history_limit,
            range_add,
            data_plane,
            verification,
            admission_policy,
            default_user_namespace,
            no_new_privileges,
            node_certificate_lifetime_ms,
        } = wire;
        let range_add = read_field("rangeAdd", range_add)?;
        let data_plane = read_field("dataPlane", data_plane)?;
        let verification = or_default::from_wire(verification)?;
        let admission_policy = read_field("admissionPolicy", admission_policy)?;
        let default_user_namespace = read_field("defaultUserNamespace", default_user_namespace)?;
        let node_certificate_lifetime =
            read_field("nodeCertificateLifetimeMs", node_certificate_lifetime_ms)?;
        Ok(Self {
            max_replicas_per_service,
            task_history_limit,
            data_plane,
            verification,
            admission_policy,
            default_user_namespace,
            no_new_privileges,
            node_certificate_lifetime,
            range_add,
        })
    }
}

impl WireForm<v1::VerificationSettings> for VerificationSettings {
    fn to_wire(&self) -> v1::VerificationSettings {
        let Self { enabled, remove_after, timeout, checks } = self;
        v1::VerificationSettings {
            enabled: Some(*enabled),
            remove_after: Some(*remove_after),
            timeout_ms: Some(timeout.to_wire()),
            checks: checks.to_wire(),
            check_rm: Vec::new(),
        }
    }

    fn from_wire(wire: v1::VerificationSettings) -> Result<Self, Violations> {
        let v1::VerificationSettings { enabled, remove_after, timeout_ms, checks, check_rm: _ } = wire;
        let missing = |what: &str| Violation::new(what, "is missing");
        Ok(Self {
            enabled: enabled.ok_or_else(|| missing("enabled"))?,
            remove_after: remove_after.ok_or_else(|| missing("removeAfter"))?,
            timeout: read_field("timeoutMs", timeout_ms.ok_or_else(|| missing("timeoutMs"))?)?,
            checks: read_field("checks", checks)?,
        })
    }
}

impl WireForm<v1::VerificationSettings> for VerificationChange {
    fn to_wire(&self) -> v1::VerificationSettings {
        let Self { enabled, remove_after, timeout, check_add, check_rm } = self;
        v1::VerificationSettings {
            enabled: *enabled,
            remove_after: *remove_after,
            timeout_ms: timeout.to_wire(),
            checks: check_add.to_wire(),
            check_rm: check_rm.to_wire(),
        }
    }

    fn from_wire(wire: v1::VerificationSettings) -> Result<Self, Violations> {
        let v1::VerificationSettings { enabled, remove_after, timeout_ms, checks, check_rm } = wire;
        Ok(Self {
            enabled,
            remove_after,
            timeout: read_field("verifyTimeout", timeout_ms)?,
            check_add: read_field("verifyCheckAdd", checks)?,
            check_rm: read_field("verifyCheckRm", check_rm)?,
        })
    }
}

required_messages! { ClusterSettingsChange as ClusterSettings }

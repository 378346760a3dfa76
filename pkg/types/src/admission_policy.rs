//! The admission policy of a cluster: what services of operators may do, and which images must be signed.

#[cfg(test)]
mod tests;

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::image_reference::{DEFAULT_DOMAIN, canonical_domain, normalize_domain, split_reference};
use crate::spec::check::check_count;
use crate::spec::storage::is_normalized_absolute;
use crate::spec::{
    AppArmor, Capability, DEFAULT_PIDS_LIMIT, Limits, MountSource, NoNewPrivileges, Seccomp, ServiceSpec,
    TaskNetworkMode, TaskSpec,
};
use crate::{ImageReference, SignatureKey, UserRole, Violations};

/// The most items of a list of rules.
const MAX_ITEMS: usize = 64;
/// The most bytes of an allowed path.
const MAX_PATH: usize = 256;
/// The most rules of signatures: a manager checks all that an image matches.
const MAX_SIGNATURE_RULES: usize = 16;
/// The most keys of one of them.
const MAX_SIGNATURE_KEYS: usize = 8;

/// Which services users may run, change and enter. Viewers run nothing, and administrators are restricted only in
/// images.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AdmissionPolicy {
    /// Of users with the role operator, people and machines.
    pub operator: AdmissionRules,
    /// Which images must be signed, whoever runs them. Managers check the digest that runs. Several rules that match an
    /// image all hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<SignatureRule>,
}

/// Images that run only with a signature of cosign.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SignatureRule {
    /// `HOST[:PORT][/REPOSITORY]`, with all repositories below; the spelling of the host does not matter.
    pub registry: String,
    /// A signature by any of them is enough.
    pub keys: Vec<SignatureKey>,
}

/// What services may set. The default gives no power over nodes. A rule that a later version adds must be skipped by
/// serde while it has its default: the digest of the state is computed from this form.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AdmissionRules {
    /// All privileges of root on the node. A seccomp profile of its own can give them too, unless the service sets
    /// `noNewPrivileges`.
    pub privileged: bool,
    /// Files and directories of the node that may be mounted, with all that is below them. Paths are compared as texts:
    /// a symbolic link below them leads where it leads.
    pub host_binds: Vec<String>,
    /// The network of the node.
    pub host_network: bool,
    /// Capabilities that may be added; `ALL` allows each.
    pub cap_add: Vec<Capability>,
    /// Devices of the node, or directories of them.
    pub devices: Vec<String>,
    /// No seccomp profile; or one of its own in a service that sets `noNewPrivileges`: whether it is weaker than the
    /// default is not examined.
    pub unconfined_seccomp: bool,
    /// No AppArmor profile, or one of the node's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unconfined_apparmor: bool,
    /// The lowest value of `oomScoreAdj`, at most 0.
    pub min_oom_score_adj: i32,
    /// The metadata service of the cloud.
    pub metadata: bool,
    /// Bootstrap services, for which tasks of others wait.
    pub bootstrap: bool,
    /// Registries of images, each as `HOST[:PORT][/REPOSITORY]` with all repositories below; empty for all.
    pub registries: Vec<String>,
    /// The most that the limits of a task may be. What is set here must be set by each task.
    pub limits: Limits,
    /// The most replicas of a replicated service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<u32>,
}

impl AdmissionPolicy {
    /// The rules of a role; `None` allows every spec.
    pub fn rules(&self, role: UserRole) -> Option<&AdmissionRules> {
        match role {
            UserRole::Admin => None,
            UserRole::Operator | UserRole::Viewer => Some(&self.operator),
        }
    }

    /// Each field with which the role may not run the spec. Paths are those of the spec, messages name the rule.
    pub fn violations(&self, role: UserRole, spec: &ServiceSpec) -> Violations {
        let mut wrong = self.privilege_violations(role, spec);
        if let Some(rules) = self.rules(role) {
            rules.check_registries(&spec.task.image, &mut wrong);
            rules.check_amounts(spec, &mut wrong);
        }
        wrong
    }

    /// Those of them that give power over nodes, so that the role may not change or enter a service that has them.
    pub fn privilege_violations(&self, role: UserRole, spec: &ServiceSpec) -> Violations {
        let mut wrong = Violations::default();
        if let Some(rules) = self.rules(role) {
            rules.check_privileges(spec, &mut wrong);
        }
        wrong
    }

    /// The rules that allow more than the default does: `operator.privileged`.
    pub fn weaker_rules(&self) -> Vec<String> {
        let AdmissionRules {
            privileged,
            host_binds,
            host_network,
            cap_add,
            devices,
            unconfined_seccomp,
            unconfined_apparmor,
            min_oom_score_adj,
            metadata,
            bootstrap,
            // By default they allow everything.
            registries: _,
            limits: _,
            max_replicas: _,
        } = &self.operator;
        let weaker = [
            (*privileged, "privileged"),
            (!host_binds.is_empty(), "hostBinds"),
            (*host_network, "hostNetwork"),
            (!cap_add.is_empty(), "capAdd"),
            (!devices.is_empty(), "devices"),
            (*unconfined_seccomp, "unconfinedSeccomp"),
            (*unconfined_apparmor, "unconfinedApparmor"),
            (*min_oom_score_adj < 0, "minOomScoreAdj"),
            (*metadata, "metadata"),
            (*bootstrap, "bootstrap"),
        ];
        weaker.into_iter().filter(|(is_set, _)| *is_set).map(|(_, rule)| format!("operator.{rule}")).collect()
    }

    /// The rules that demand a signature of the image, with their numbers.
    pub fn signature_rules(&self, image: &ImageReference) -> impl Iterator<Item = (usize, &SignatureRule)> {
        self.signatures.iter().enumerate().filter(move |(_, rule)| is_image_of(image, &rule.registry))
    }

    /// All violations of the policy itself; paths are relative to it.
    pub fn validate(&self) -> Violations {
        let Self { operator, signatures } = self;
        let mut wrong = Violations::default();
        wrong.nest("operator", operator.validate());
        check_count("signatures", signatures.len(), MAX_SIGNATURE_RULES, &mut wrong);
        for (i, SignatureRule { registry, keys }) in signatures.iter().enumerate() {
            check_registry(&format!("signatures[{i}].registry"), registry, &mut wrong);
            let path = format!("signatures[{i}].keys");
            if keys.is_empty() {
                wrong.add(path.as_str(), "is empty; give a public key");
            }
            check_count(&path, keys.len(), MAX_SIGNATURE_KEYS, &mut wrong);
        }
        wrong
    }
}

impl AdmissionRules {
    fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        for (field, paths) in [("hostBinds", &self.host_binds), ("devices", &self.devices)] {
            check_count(field, paths.len(), MAX_ITEMS, &mut wrong);
            for (i, path) in paths.iter().enumerate() {
                if !is_normalized_absolute(path) || path.len() > MAX_PATH {
                    let message =
                        format!("{path:?} is not an absolute path of at most {MAX_PATH} bytes without '..'");
                    wrong.add(format!("{field}[{i}]"), message);
                }
            }
        }
        check_count("capAdd", self.cap_add.len(), MAX_ITEMS, &mut wrong);
        if !(-1000..=0).contains(&self.min_oom_score_adj) {
            let found = self.min_oom_score_adj;
            wrong.add("minOomScoreAdj", format!("{found} is out of range; give -1000 to 0"));
        }
        check_count("registries", self.registries.len(), MAX_ITEMS, &mut wrong);
        for (i, registry) in self.registries.iter().enumerate() {
            check_registry(&format!("registries[{i}]"), registry, &mut wrong);
        }
        wrong.nest("limits", self.limits.validate());
        wrong
    }

    fn check_privileges(&self, spec: &ServiceSpec, wrong: &mut Violations) {
        // Every field is named, so that a new one is decided on.
        let TaskSpec {
            image: _,
            pull: _,
            resolve_image: _,
            command: _,
            args: _,
            env: _,
            container_labels: _,
            workdir: _,
            user: _,
            groups: _,
            hostname: _,
            hosts: _,
            tty: _,
            stdin: _,
            storage_limit: _,
            init: _,
            stop_signal: _,
            drain_delay: _,
            stop_grace: _,
            post_start: _,
            pre_stop: _,
            limits: _,
            reservations: _,
            ulimits: _,
            sysctls: _,
            shm_size: _,
            oom_score_adj,
            privileged,
            cap_add: _,
            cap_drop: _,
            no_new_privileges,
            seccomp,
            apparmor,
            devices: _,
            read_only: _,
            mounts: _,
            secrets: _,
            configs: _,
            health: _,
            restart: _,
            on_disconnect: _,
            logs: _,
            network,
            dns: _,
            allow_metadata,
            // Whether it is a privilege depends on the default of the cluster.
            user_namespace: _,
        } = &spec.task;
        let host_network = *network == TaskNetworkMode::Host;
        let (allows_seccomp, seccomp_rule, when) = self.seccomp_rule(seccomp, *no_new_privileges);
        let (own_seccomp, seccomp) = (*seccomp != Seccomp::Default, format!("is {seccomp}{when}"));
        let (own_apparmor, apparmor) = (*apparmor != AppArmor::Default, format!("is {apparmor}"));
        for (is_set, is_allowed, path, found, rule) in [
            (*privileged, self.privileged, "task.privileged", "is true", "privileged"),
            (host_network, self.host_network, "task.network", "is that of the node", "hostNetwork"),
            (own_seccomp, allows_seccomp, "task.seccomp", &*seccomp, seccomp_rule),
            (own_apparmor, self.unconfined_apparmor, "task.apparmor", &*apparmor, "unconfinedApparmor"),
            (*allow_metadata, self.metadata, "task.allowMetadata", "is true", "metadata"),
            (spec.bootstrap, self.bootstrap, "bootstrap", "is true", "bootstrap"),
        ] {
            if is_set && !is_allowed {
                refuse(wrong, path, found, rule);
            }
        }
        if let Some(score) = oom_score_adj.filter(|score| *score < self.min_oom_score_adj) {
            refuse(wrong, "task.oomScoreAdj", format_args!("is {score}"), "minOomScoreAdj");
        }
        self.check_lists(&spec.task, wrong);
    }

    /// Whether a profile that is not the default is allowed, by which rule, and what makes it that one.
    fn seccomp_rule(&self, seccomp: &Seccomp, asked: NoNewPrivileges) -> (bool, &'static str, &'static str) {
        match seccomp {
            // The filter is there while the runtime drops capabilities and changes the user, and a profile can make
            // those calls return without effect. The default of the cluster may change later.
            Seccomp::Config(_) if asked != NoNewPrivileges::On => {
                (self.privileged, "privileged", " without noNewPrivileges")
            }
            _ => (self.unconfined_seccomp, "unconfinedSeccomp", ""),
        }
    }

    fn check_lists(&self, task: &TaskSpec, wrong: &mut Violations) {
        for (i, capability) in task.cap_add.iter().enumerate() {
            if !self.cap_add.contains(capability) && !self.cap_add.contains(&Capability::ALL) {
                refuse(wrong, format!("task.capAdd[{i}]"), format_args!("is {capability}"), "capAdd");
            }
        }
        let is_allowed = |path: &str, prefixes: &[String]| prefixes.iter().any(|above| is_below(path, above));
        for (i, device) in task.devices.iter().enumerate() {
            if !is_allowed(&device.source, &self.devices) {
                refuse(wrong, format!("task.devices[{i}]"), format_args!("is {}", device.source), "devices");
            }
        }
        for (i, mount) in task.mounts.iter().enumerate() {
            if let MountSource::Bind { path, .. } = &mount.source
                && !is_allowed(path, &self.host_binds)
            {
                let found = format!("is {path} of the node");
                refuse(wrong, format!("task.mounts[{i}]"), found, "hostBinds");
            }
        }
    }

    fn check_registries(&self, image: &ImageReference, wrong: &mut Violations) {
        let is_allowed = self.registries.iter().any(|registry| is_image_of(image, registry));
        if !self.registries.is_empty() && !is_allowed {
            refuse(wrong, "task.image", format_args!("is {image}"), "registries");
        }
    }

    fn check_amounts(&self, spec: &ServiceSpec, wrong: &mut Violations) {
        let Limits { cpu, memory, pids } = spec.task.limits;
        check_amount("limits.cpu", cpu, self.limits.cpu, wrong);
        check_amount("limits.memory", memory, self.limits.memory, wrong);
        check_amount("limits.pids", pids.or(Some(DEFAULT_PIDS_LIMIT)), self.limits.pids, wrong);
        let replicas = spec.replicas().zip(self.max_replicas).filter(|(replicas, most)| replicas > most);
        if let Some((replicas, most)) = replicas {
            let found = format!("is {replicas}, more than {most}");
            refuse(wrong, "mode.replicated.replicas", found, "maxReplicas");
        }
    }
}

fn refuse(wrong: &mut Violations, path: impl Into<String>, found: impl Display, rule: &str) {
    wrong.add(path, format!("{found}, which operator.{rule} does not allow"));
}

/// `rule` is also the path in the task spec.
fn check_amount<T: PartialOrd + Display>(
    rule: &str,
    given: Option<T>,
    most: Option<T>,
    wrong: &mut Violations,
) {
    let path = format!("task.{rule}");
    match (given, most) {
        (None, Some(most)) => {
            refuse(wrong, path, format_args!("is not set and may be more than {most}"), rule);
        }
        (Some(given), Some(most)) if given > most => {
            refuse(wrong, path, format_args!("is {given}, more than {most}"), rule);
        }
        _ => {}
    }
}

/// The components of a path; repeated slashes and `.` are none.
fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty() && *part != ".")
}

/// Whether `path` is `above` or below it, by whole components. A path with `..` is below nothing.
fn is_below(path: &str, above: &str) -> bool {
    let mut found = components(path);
    !components(path).any(|part| part == "..") && components(above).all(|part| found.next() == Some(part))
}

/// Whether the image is of that registry, and its repository is that of the registry's text or below it. As in images,
/// `docker.io/nginx` is also `docker.io/library/nginx`.
fn is_image_of(image: &ImageReference, registry: &str) -> bool {
    let Ok(image) = split_reference(image.as_str()) else { return false };
    let (host, repository) = registry.split_once('/').unwrap_or((registry, ""));
    let domain = canonical_domain(host);
    let may_be_official = domain == DEFAULT_DOMAIN && !repository.is_empty() && !repository.contains('/');
    canonical_domain(image.domain) == domain
        && (is_below(&image.path, repository)
            || may_be_official && is_below(&image.path, &format!("library/{repository}")))
}

/// Checks that the text is `HOST[:PORT][/REPOSITORY]`, with a host that image references take for one.
fn check_registry(path: &str, text: &str, wrong: &mut Violations) {
    let host = text.split('/').next().unwrap_or_default();
    let reference = format!("{text}/image");
    if !split_reference(&reference).is_ok_and(|image| image.domain == normalize_domain(host)) {
        wrong.add(path, format!("{text:?} is not a registry; give HOST[:PORT][/REPOSITORY]"));
    }
}

//! `warren cluster check-security`: what of this cluster is weaker than it could be.

use std::collections::BTreeSet;
use std::time::Duration;

use warren_client::Client;
use warren_proto::convert::{data_plane, user_namespace};
use warren_proto::v1;
use warren_types::{
    AdmissionPolicy, DataPlane, ImageResolver, NoNewPrivileges, NodeCheckOutcome, SecretObjectKind,
    ServiceSpec, Timestamp, UserNamespace, UserRole, Violation,
};

use crate::args::{GlobalArgs, OutputFormat};
use crate::connect::connect;
use crate::failure::{CommandError, from_client};
use crate::output;
use crate::view::cluster::admission_policy;
use crate::view::verification::{CheckView, report};
use crate::view::{invalid_response, now};

/// A login that is older than this is probably forgotten.
const OLD_LOGIN: Duration = Duration::from_secs(90 * 24 * 3600);
/// Names in one message.
const MAX_NAMES: usize = 8;

/// What the managers say of the cluster.
struct ClusterState {
    info: v1::InfoResponse,
    policy: AdmissionPolicy,
    services: Vec<ServiceSpec>,
    /// By the name of each service, the fields whose default it took before that of the cluster was changed.
    earlier_defaults: Vec<(String, Vec<String>)>,
    nodes: Vec<v1::Node>,
    tokens: Vec<v1::Token>,
    users: Vec<v1::User>,
    registries: Vec<v1::SecretObject>,
    now: Timestamp,
}

/// Prints every check; one that finds something weak is a warning, and no error.
pub async fn run(global: &GlobalArgs) -> Result<(), CommandError> {
    let what = "the security of the cluster was not checked";
    let client = connect(global, what).await?;
    let views = checks(&fetch(&client, what).await?);
    match global.output {
        OutputFormat::Table | OutputFormat::Wide => {
            let warnings = views.iter().filter(|view| view.outcome == NodeCheckOutcome::Warning).count();
            let passed = views.len() - warnings;
            output::print(&format!("{}{passed} passed, {warnings} warnings\n", report(&views)))
        }
        OutputFormat::Json | OutputFormat::Yaml => output::print_document(global.output, &views),
    }
}

async fn fetch(client: &Client, what: &str) -> Result<ClusterState, CommandError> {
    let failed = |error| from_client(what, error);
    let (mut services, mut earlier_defaults) = (Vec::new(), Vec::new());
    for service in client.services().list().await.map_err(failed)? {
        let spec = service.spec.unwrap_or_default();
        earlier_defaults.push((spec.name.clone(), service.earlier_defaults));
        services.push(spec.try_into().map_err(invalid_response("the service"))?);
    }
    let info = client.cluster().info().await.map_err(failed)?;
    Ok(ClusterState {
        policy: admission_policy(&info)?,
        info,
        services,
        earlier_defaults,
        nodes: client.nodes().list().await.map_err(failed)?,
        tokens: client.tokens().list().await.map_err(failed)?,
        users: client.users().list().await.map_err(failed)?,
        registries: client.secret_objects(SecretObjectKind::Credential).list().await.map_err(failed)?,
        now: now(),
    })
}

fn checks(cluster: &ClusterState) -> Vec<CheckView> {
    vec![
        traffic(cluster),
        verification(cluster),
        tokens(cluster),
        logins(cluster),
        privileges(cluster),
        policy(cluster),
        users_of_containers(cluster),
        new_privileges(cluster),
        earlier_defaults(cluster),
        apparmor(cluster),
        images(cluster),
        passwords(cluster),
        versions(cluster),
    ]
}

/// A warning about what was `found`; passed if that is nothing.
fn check(name: &str, found: &[String], message: &str, hint: &str) -> CheckView {
    let name = name.to_owned();
    if found.is_empty() {
        let (message, hint) = (String::new(), String::new());
        return CheckView { name, outcome: NodeCheckOutcome::Passed, message, hint };
    }
    let mut shown = found[..found.len().min(MAX_NAMES)].join(", ");
    if found.len() > MAX_NAMES {
        shown += &format!(" and {} more", found.len() - MAX_NAMES);
    }
    let message = format!("{message}: {shown}");
    CheckView { name, outcome: NodeCheckOutcome::Warning, message, hint: hint.to_owned() }
}

fn traffic(cluster: &ClusterState) -> CheckView {
    let kind = cluster.info.settings.as_ref().and_then(|settings| data_plane(settings.data_plane?).ok());
    let found = kind.filter(|kind| *kind != DataPlane::Wireguard).map(|kind| kind.describe().to_owned());
    let hint =
        "`warren cluster update --data-plane wireguard` encrypts it; connections between tasks break once";
    check("traffic between nodes", &Vec::from_iter(found), "packets of tasks can be read on the way", hint)
}

fn verification(cluster: &ClusterState) -> CheckView {
    let settings = cluster.info.settings.clone().unwrap_or_default().verification.unwrap_or_default();
    let found = (!settings.enabled.unwrap_or_default()).then(|| "it is off".to_owned());
    let hint = "`warren cluster update --verify-nodes on` holds new nodes until checks pass on them";
    check("verification of nodes", &Vec::from_iter(found), "new nodes get tasks at once", hint)
}

fn tokens(cluster: &ClusterState) -> CheckView {
    let is_valid = |token: &&v1::Token| token.expires_at.is_none_or(|end| end > cluster.now.0);
    let is_open = |token: &&v1::Token| token.expires_at.is_none() || token.max_uses.is_none();
    let open = cluster.tokens.iter().filter(is_valid).filter(is_open);
    let found: Vec<String> = open.map(|token| token.id.clone()).collect();
    let hint = "`warren token rm` the ones that are not needed, and create others with --ttl and --uses";
    check("join tokens", &found, "tokens that let in any number of machines, or never expire", hint)
}

fn logins(cluster: &ClusterState) -> CheckView {
    let is_old = |at: u64| cluster.now.saturating_since(Timestamp(at)) > OLD_LOGIN;
    let old = cluster.users.iter().filter(|user| user.logins.iter().any(|login| is_old(login.at)));
    let found: Vec<String> = old
        .map(|user| match user.role() == v1::UserRole::Admin {
            true => format!("{} (admin)", user.name),
            false => user.name.clone(),
        })
        .collect();
    let hint =
        "`warren user logout NAME` ends the logins of a user, `warren user token NAME` prints a new token";
    check("logins", &found, "users with a login of more than 90 days ago", hint)
}

fn privileges(cluster: &ClusterState) -> CheckView {
    let default = AdmissionPolicy::default();
    let fields = |spec: &ServiceSpec| -> Vec<String> {
        let found = default.privilege_violations(UserRole::Operator, spec).0;
        found.into_iter().map(|Violation { path, .. }| path).collect()
    };
    let powerful = cluster.services.iter().map(|spec| (&spec.name, fields(spec)));
    let found: Vec<String> = powerful
        .filter(|(_, fields)| !fields.is_empty())
        .map(|(name, fields)| format!("{name} ({})", fields.join(", ")))
        .collect();
    let hint =
        "whoever controls such a container controls its node; by default only administrators can run them";
    check("privileges of services", &found, "services with power over nodes", hint)
}

fn policy(cluster: &ClusterState) -> CheckView {
    let hint = "leave them out of the document for `warren cluster policy set`: whoever controls such a \
                service controls its node";
    let message = "operators may run services that give power over nodes, by the rules";
    check("admission policy", &cluster.policy.weaker_rules(), message, hint)
}

fn default_user_namespace(cluster: &ClusterState) -> Option<UserNamespace> {
    user_namespace(cluster.info.settings.as_ref()?.default_user_namespace?).ok()
}

fn users_of_containers(cluster: &ClusterState) -> CheckView {
    let default = default_user_namespace(cluster);
    let found = default.filter(|default| *default == UserNamespace::Host);
    let found = found.map(|default| format!("the default is {default}"));
    let hint = "`warren cluster update --default-user-namespace private` gives services users without rights on nodes";
    check("users of containers", &Vec::from_iter(found), "root of containers is root of their nodes", hint)
}

fn new_privileges(cluster: &ClusterState) -> CheckView {
    let is_on = cluster.info.settings.as_ref().and_then(|settings| settings.no_new_privileges);
    let allowing = cluster.services.iter().filter(|spec| spec.task.no_new_privileges == NoNewPrivileges::Off);
    let allowing = allowing.map(|spec| format!("in {}", spec.name)).collect();
    let found = match is_on {
        Some(false) => vec!["the default is off".to_owned()],
        Some(true) => allowing,
        None => Vec::new(),
    };
    let hint =
        "`warren cluster update --no-new-privileges on` prevents it in services that do not say otherwise";
    check("new privileges", &found, "programs of containers may gain privileges, as by setuid", hint)
}

fn earlier_defaults(cluster: &ClusterState) -> CheckView {
    let is_private = default_user_namespace(cluster) == Some(UserNamespace::Private);
    let is_on = cluster.info.settings.as_ref().and_then(|settings| settings.no_new_privileges) == Some(true);
    let is_weaker = |field: &&str| match *field {
        "userNamespace" => is_private,
        "noNewPrivileges" => is_on,
        _ => false,
    };
    let found = cluster.earlier_defaults.iter().filter_map(|(name, fields)| {
        let weaker: Vec<&str> = fields.iter().map(String::as_str).filter(is_weaker).collect();
        (!weaker.is_empty()).then(|| format!("{name} ({})", weaker.join(", ")))
    });
    let hint = "`warren service update NAME --force` replaces the tasks of a service by tasks with the defaults; or, \
                where that is refused, `--user-namespace host`";
    let message = "services that have not taken a stricter default of the cluster";
    check("defaults of the cluster", &Vec::from_iter(found), message, hint)
}

fn apparmor(cluster: &ClusterState) -> CheckView {
    let lacks =
        |node: &&v1::Node| node.description.as_ref().is_some_and(|description| description.apparmor_missing);
    let found: Vec<String> = cluster.nodes.iter().filter(lacks).map(|node| node.name.clone()).collect();
    let hint = "`warren system check` on the node says why; then restart it";
    let message = "nodes with AppArmor whose containers have no profile";
    check("AppArmor", &found, message, hint)
}

fn images(cluster: &ClusterState) -> CheckView {
    let resolved_by_worker = |spec: &&ServiceSpec| spec.task.image_resolver() == ImageResolver::Worker;
    let tagged =
        cluster.services.iter().filter(resolved_by_worker).filter(|spec| spec.task.image.digest().is_none());
    let found: Vec<String> = tagged.map(|spec| spec.name.to_string()).collect();
    let hint = "`warren service update NAME --resolve-image manager` has managers ask the registry";
    check("images", &found, "the first node that pulls the tag decides the digest for all", hint)
}

fn passwords(cluster: &ClusterState) -> CheckView {
    let with_password = cluster.registries.iter().filter(|registry| !registry.token_only);
    let found: Vec<String> =
        with_password.map(|registry| format!("{} ({})", registry.name, registry.user)).collect();
    let hint = "`warren registry login HOST --token-only` lets nodes have only tokens for single repositories; a \
                registry without tokens needs an account that may only pull";
    let message = "nodes with an image of the registry get its password when there is no token";
    check("passwords of registries", &found, message, hint)
}

fn versions(cluster: &ClusterState) -> CheckView {
    let versions =
        cluster.nodes.iter().filter_map(|node| Some((node, &node.description.as_ref()?.warren_version)));
    let other = versions.filter(|(_, version)| !version.is_empty() && **version != cluster.info.version);
    let found: BTreeSet<String> = other.map(|(node, version)| format!("{} ({version})", node.name)).collect();
    let hint = "run the same version everywhere: fixes of defects reach a node with its own program only";
    let message = format!("nodes that do not run {}", cluster.info.version);
    check("versions", &Vec::from_iter(found), &message, hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::TaskSpec;

    fn service(name: &str, image: &str) -> ServiceSpec {
        ServiceSpec::new(name.parse().unwrap(), TaskSpec::new(image.parse().unwrap()))
    }

    fn cluster() -> ClusterState {
        let settings = v1::ClusterSettings {
            data_plane: Some(v1::DataPlane::Wireguard.into()),
            verification: Some(v1::VerificationSettings { enabled: Some(true), ..Default::default() }),
            default_user_namespace: Some(v1::UserNamespace::Private.into()),
            no_new_privileges: Some(true),
            ..Default::default()
        };
        let version = "1.2.0".to_owned();
        let digest = "0".repeat(64);
        ClusterState {
            info: v1::InfoResponse { settings: Some(settings), version, ..Default::default() },
            policy: AdmissionPolicy::default(),
            services: vec![service("web", &format!("nginx@sha256:{digest}"))],
            earlier_defaults: vec![("web".to_owned(), Vec::new())],
            nodes: Vec::new(),
            tokens: Vec::new(),
            users: Vec::new(),
            registries: vec![v1::SecretObject { token_only: true, ..Default::default() }],
            now: Timestamp(OLD_LOGIN.as_millis() as u64 + 10),
        }
    }

    /// The names and messages of the warnings.
    fn warnings(cluster: &ClusterState) -> Vec<(String, String)> {
        let found = checks(cluster).into_iter().filter(|view| view.outcome == NodeCheckOutcome::Warning);
        found.map(|view| (view.name, view.message)).collect()
    }

    #[test]
    fn strict_cluster_has_no_warnings() {
        let mut cluster = cluster();
        let token = v1::Token { expires_at: Some(u64::MAX), max_uses: Some(1), ..Default::default() };
        let expired = v1::Token { expires_at: Some(1), ..Default::default() };
        cluster.tokens = vec![token, expired];
        let recent = v1::UserLogin { at: 11, ..Default::default() };
        cluster.users = vec![v1::User { logins: vec![recent], ..Default::default() }];
        assert_eq!(warnings(&cluster), []);
    }

    #[test]
    fn each_weakness_is_named() {
        type Case = (&'static str, fn(&mut ClusterState), &'static str);
        let cases: [Case; 16] = [
            (
                "traffic between nodes",
                |cluster| {
                    let vxlan = Some(v1::DataPlane::Vxlan.into());
                    cluster.info.settings.as_mut().unwrap().data_plane = vxlan;
                },
                "packets of tasks can be read on the way: not encrypted (VXLAN)",
            ),
            (
                "verification of nodes",
                |cluster| cluster.info.settings.as_mut().unwrap().verification = None,
                "new nodes get tasks at once: it is off",
            ),
            (
                "join tokens",
                |cluster| {
                    let expires_at = Some(u64::MAX);
                    cluster.tokens = vec![v1::Token { id: "t1".into(), expires_at, ..Default::default() }];
                },
                "tokens that let in any number of machines, or never expire: t1",
            ),
            (
                "join tokens",
                |cluster| {
                    let max_uses = Some(1);
                    cluster.tokens = vec![v1::Token { id: "t2".into(), max_uses, ..Default::default() }];
                },
                "tokens that let in any number of machines, or never expire: t2",
            ),
            (
                "logins",
                |cluster| {
                    let logins = vec![v1::UserLogin { at: 9, ..Default::default() }];
                    let role = v1::UserRole::Admin.into();
                    cluster.users = vec![v1::User { name: "ann".into(), role, logins, ..Default::default() }];
                },
                "users with a login of more than 90 days ago: ann (admin)",
            ),
            (
                "privileges of services",
                |cluster| {
                    cluster.services[0].task.privileged = true;
                    cluster.services[0].task.allow_metadata = true;
                },
                "services with power over nodes: web (task.privileged, task.allowMetadata)",
            ),
            (
                "admission policy",
                |cluster| {
                    let rules = &mut cluster.policy.operator;
                    (rules.host_network, rules.registries) = (true, vec!["ghcr.io".to_owned()]);
                    rules.host_binds = vec!["/srv".to_owned()];
                },
                "operators may run services that give power over nodes, by the rules: operator.hostBinds, \
                 operator.hostNetwork",
            ),
            (
                "users of containers",
                |cluster| {
                    let host = Some(v1::UserNamespace::Host.into());
                    cluster.info.settings.as_mut().unwrap().default_user_namespace = host;
                },
                "root of containers is root of their nodes: the default is host",
            ),
            (
                "new privileges",
                |cluster| cluster.info.settings.as_mut().unwrap().no_new_privileges = Some(false),
                "programs of containers may gain privileges, as by setuid: the default is off",
            ),
            (
                "new privileges",
                |cluster| cluster.services[0].task.no_new_privileges = NoNewPrivileges::Off,
                "programs of containers may gain privileges, as by setuid: in web",
            ),
            (
                "defaults of the cluster",
                |cluster| {
                    let both = ["userNamespace", "noNewPrivileges"].map(str::to_owned).to_vec();
                    cluster.earlier_defaults = (1..=9).map(|n| (format!("s{n}"), both.clone())).collect();
                    cluster.earlier_defaults.push(("last".to_owned(), both[1..].to_vec()));
                },
                "services that have not taken a stricter default of the cluster: \
                 s1 (userNamespace, noNewPrivileges), s2 (userNamespace, noNewPrivileges), \
                 s3 (userNamespace, noNewPrivileges), s4 (userNamespace, noNewPrivileges), \
                 s5 (userNamespace, noNewPrivileges), s6 (userNamespace, noNewPrivileges), \
                 s7 (userNamespace, noNewPrivileges), s8 (userNamespace, noNewPrivileges) and 2 more",
            ),
            // A service with a stricter default than the cluster has now is no weakness.
            (
                "users of containers",
                |cluster| {
                    let host = Some(v1::UserNamespace::Host.into());
                    cluster.info.settings.as_mut().unwrap().default_user_namespace = host;
                    cluster.earlier_defaults[0].1.push("userNamespace".to_owned());
                },
                "root of containers is root of their nodes: the default is host",
            ),
            (
                "AppArmor",
                |cluster| {
                    let description =
                        Some(v1::NodeDescription { apparmor_missing: true, ..Default::default() });
                    cluster.nodes = vec![v1::Node { name: "n1".into(), description, ..Default::default() }];
                },
                "nodes with AppArmor whose containers have no profile: n1",
            ),
            (
                "images",
                |cluster| {
                    cluster.services.push(service("tagged", "nginx:1.27"));
                    let mut services: Vec<_> =
                        (1..=10).map(|n| service(&format!("s{n}"), "nginx:1.27")).collect();
                    for service in &mut services {
                        service.task.resolve_image = ImageResolver::Worker;
                    }
                    cluster.services.extend(services);
                },
                "the first node that pulls the tag decides the digest for all: s1, s2, s3, s4, s5, s6, s7, s8 and \
                 2 more",
            ),
            (
                "passwords of registries",
                |cluster| {
                    let (name, user) = ("ghcr.io".to_owned(), "ann".to_owned());
                    cluster.registries.push(v1::SecretObject { name, user, ..Default::default() });
                },
                "nodes with an image of the registry get its password when there is no token: ghcr.io (ann)",
            ),
            (
                "versions",
                |cluster| {
                    let warren_version = "1.1.9".to_owned();
                    let description = Some(v1::NodeDescription { warren_version, ..Default::default() });
                    cluster.nodes = vec![v1::Node { name: "n1".into(), description, ..Default::default() }];
                },
                "nodes that do not run 1.2.0: n1 (1.1.9)",
            ),
        ];
        for (name, weaken, message) in cases {
            let mut cluster = cluster();
            weaken(&mut cluster);
            assert_eq!(warnings(&cluster), [(name.to_owned(), message.to_owned())]);
        }
    }
}

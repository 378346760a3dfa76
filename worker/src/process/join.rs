//! Joins a cluster: the token's digest identifies the CA before anything is sent, then the token and a
//! certificate request are sent, and a certificate is returned.

use std::sync::Arc;

use warren_daemon::join::{self, JoinRefusal, NOT_JOINED};
use warren_daemon::{CommandError, ExitKind, HostInfo, NodeSection};
use warren_proto::v1::membership_client::MembershipClient;
use warren_proto::{Problem, v1};
use warren_security::{
    CertificateRequest, Credentials, JoinToken, NodeMembership, NodeMembershipError, Roots, client_config,
};
use warren_types::{NodeDescription, NodeName, NodeRole};

use super::run::{self, WorkerEnd, WorkerStartReason};
use super::{JoinedSection, NOT_STARTED, WorkerJoinArgs, WorkerSettings, WorkerTelemetry, failed};
use crate::cache::cache_files;
use crate::session::{SharedDialer, TlsDialer, removal_file};
use crate::worker::node_identity;

/// Joins, unless this machine is already a member of the token's cluster, and runs the worker. A member that
/// was removed meanwhile joins again, after its containers are stopped; so does one that trusts no authority of the
/// managers any more, which nobody could tell anything.
pub(super) async fn join(args: WorkerJoinArgs) -> Result<(), CommandError> {
    let WorkerJoinArgs { address: manager, token, advertise, taints, dirs, metrics, mut flags } = args;
    flags.taints = taints.into_taints(NOT_JOINED)?;
    let token = join::parse_token(&token, NodeRole::Worker)?;
    let machine = HostInfo::detect()?;
    machine.ensure_root("run it as root")?;
    let given = WorkerSettings {
        data_dir: dirs.data_dir.clone(),
        node: NodeSection::from_args(&dirs, metrics),
        joined: JoinedSection { managers: vec![manager.clone()], advertise, ..JoinedSection::default() },
        flags: flags.clone(),
    };
    let earlier = WorkerSettings::load(dirs, metrics, flags)?;
    let membership = given.membership().load().map_err(|error| unusable_membership(&error))?;
    let mut is_trusted = true;
    if let NodeMembership::Member { credentials, roots } = &membership
        && !roots.digests().contains(&token.authority())
    {
        // The certificate authority may have been replaced while this machine was away.
        let (_, shown) = join::connect(&manager, &token).await?;
        if shown.cluster().as_deref() != Some(credentials.identity().cluster()) {
            return Err(other_cluster(roots));
        }
        is_trusted = trusts(&manager, credentials, roots).await?;
    }
    let (settings, shown) = match membership {
        NodeMembership::Member { credentials, .. } => {
            let settings = match earlier {
                Some(earlier) => earlier.with_join(given.joined),
                None => given,
            };
            settings.save()?;
            let shown = WorkerTelemetry::start(&settings).await?;
            let ended = match is_trusted || settings.removal_record(&credentials)?.load().is_some() {
                true => run::run_joined(&settings, WorkerStartReason::Resumed, &shown).await?,
                false => WorkerEnd::UnknownNode,
            };
            match ended {
                WorkerEnd::Stopped => return Ok(()),
                // A node that was removed while it runs must not join again by itself.
                WorkerEnd::Removed { removal, before_start: false } => {
                    return Err(run::removed_failure(&removal));
                }
                WorkerEnd::Removed { before_start: true, .. } | WorkerEnd::UnknownNode => (settings, shown),
            }
        }
        // A metrics address in use is reported before the cluster learns of this machine.
        NodeMembership::Joining { .. } | NodeMembership::NotMember => {
            let shown = WorkerTelemetry::start(&given).await?;
            (given, shown)
        }
    };
    let greeting = join_cluster(&settings, &manager, &token, &machine).await?;
    match run::run_joined(&settings, WorkerStartReason::Joined(greeting), &shown).await? {
        WorkerEnd::Removed { removal, .. } => Err(run::removed_failure(&removal)),
        WorkerEnd::Stopped | WorkerEnd::UnknownNode => Ok(()),
    }
}

/// Whether the authorities that the node trusts vouch for the manager, as far as that is known.
async fn trusts(manager: &str, node: &Credentials, roots: &Roots) -> Result<bool, CommandError> {
    let unusable = |error: &dyn std::error::Error| failed(NOT_JOINED, error, "check the data directory");
    let (_, id) = node_identity(node.identity()).map_err(|error| unusable(&error))?;
    let tls = client_config(roots, None).map_err(|error| unusable(&error))?;
    let dial: SharedDialer = Arc::new(TlsDialer::new(id, vec![manager.to_owned()], tls));
    let dialled = dial.dial_anonymously().await;
    Ok(!dialled.is_err_and(|error| error.is_untrusted_manager()))
}

/// Joins the cluster; returns a message for the user.
async fn join_cluster(
    settings: &WorkerSettings,
    manager: &str,
    token: &JoinToken,
    machine: &HostInfo,
) -> Result<String, CommandError> {
    let store = settings.membership();
    let key = store.ensure_key().map_err(|error| unusable_membership(&error))?;
    let name = machine.node_name(settings.flags.node_name.as_ref())?;
    // Missing requirements are reported before the cluster learns of this machine.
    run::check(&settings.data_dir, &settings.run_dir(), &settings.flags).await?;
    let request = CertificateRequest::create(&key).map_err(|error| failed(NOT_JOINED, &error, ""))?;
    let (roots, answer) = request_join(manager, token, request, &name, settings).await?;
    // Before the certificate: with the record of an earlier removal next to it, it would be useless.
    clear_earlier_membership(settings)
        .map_err(|error| failed(NOT_JOINED, &error, "check the data directory, then try again"))?;
    store.complete(&roots, &answer.certificate).map_err(|error| unusable_membership(&error))?;
    settings.save()?;
    Ok(format!("node {} joined cluster {}\n", answer.node_name, answer.cluster_id))
}

/// Removes the state of an earlier membership: removal record and assignments. The node gets a new subnet,
/// and would set its network up twice.
pub(super) fn clear_earlier_membership(settings: &WorkerSettings) -> std::io::Result<()> {
    let [assignment, network] = cache_files(&settings.data_dir);
    [removal_file(&settings.data_dir), assignment, network]
        .iter()
        .try_for_each(|file| super::remove_if_present(file))
}

async fn request_join(
    manager: &str,
    token: &JoinToken,
    certificate_request: String,
    name: &NodeName,
    settings: &WorkerSettings,
) -> Result<(Roots, v1::JoinResponse), CommandError> {
    let (channel, roots) = join::connect(manager, token).await?;
    let description = NodeDescription {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        address: settings.joined.advertise.clone().unwrap_or_default(),
        labels: settings.flags.labels(),
        ..NodeDescription::default()
    };
    let request = v1::JoinRequest {
        token: token.reveal().to_string(),
        certificate_request,
        name: name.to_string(),
        description: Some((&description).into()),
        taints: settings.flags.taints.iter().map(ToString::to_string).collect(),
    };
    let answer = join::await_answer(manager, MembershipClient::new(channel).join(request)).await?;
    Ok((roots, answer.map_err(|status| join_failure(&status))?.into_inner()))
}

/// The error with its exit code for a manager's answer.
pub(super) fn join_failure(status: &tonic::Status) -> CommandError {
    let Problem { code, message, violations, reason } = Problem::from(status);
    JoinRefusal { code, reason, message, violations }.into_error(NodeRole::Worker)
}

fn unusable_membership(error: &NodeMembershipError) -> CommandError {
    failed(NOT_STARTED, error, "check the data directory, or choose another --data-dir")
}

fn other_cluster(roots: &Roots) -> CommandError {
    let known = roots.digests().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let why = format!("this machine is already a member of another cluster (CA {known})");
    let hint = "leave it first with `warren worker leave`, or choose another --data-dir";
    CommandError::new(ExitKind::Conflict, NOT_JOINED, why, hint)
}

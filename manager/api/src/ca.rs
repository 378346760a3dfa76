//! The certificate authority: its replacement, and how far that is.

use std::time::SystemTime;

use tonic::{Code, Request, Response, Status};
use warren_bootstrap::ca::rotation_id;
use warren_core::state::{ObjectKind, RotationProgress};
use warren_core::{CaCommand, Cluster, Command, State};
use warren_proto::status::Problem;
use warren_proto::v1;
use warren_security::{CaDigest, Roots};
use warren_store::problem::status_of;
use warren_types::{CaPhase, CaRotation, Violation};

use super::Api;
use super::audited_call::AuditedCall;
use super::membership::internal_error;

/// Names in a response.
pub(super) const MAX_NAMES: usize = 100;

/// Whether it replaced this authority, or replaces it.
fn replaced(rotation: &CaRotation, authority: CaDigest) -> bool {
    let roots = rotation.predecessors.first().and_then(|certificate| Roots::parse(certificate).ok());
    roots.is_some_and(|roots| roots.digests().contains(&authority))
}

fn show<T>(progress: RotationProgress<T>, name: impl Fn(T) -> String) -> v1::CaProgress {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    v1::CaProgress {
        total: count(progress.total),
        missing: count(progress.missing.len()),
        missing_names: progress.missing.into_iter().take(MAX_NAMES).map(name).collect(),
    }
}

impl Api {
    /// The authority by which machines and users that come with a token recognise the cluster: one that all managers
    /// show.
    pub(super) fn token_authority(&self) -> CaDigest {
        let trusted = self.store.read().state.ca_rotation().and_then(CaRotation::trusted);
        let authority = self.authority.load();
        let common = || authority.roots().digests().last().copied();
        trusted.or_else(common).unwrap_or_else(|| authority.digest())
    }

    pub(super) fn show_ca(&self, state: &State) -> v1::CaStatus {
        let rotation = state.ca_rotation();
        let digest = rotation.map_or_else(|| self.authority.load().digest(), |rotation| rotation.digest);
        v1::CaStatus {
            ca_digest: digest.to_string(),
            phase: rotation.map_or(v1::CaPhase::Unspecified, |rotation| rotation.phase.into()).into(),
            began_at: rotation.map_or(0, |rotation| rotation.began_at.0),
            managers: Some(show(state.ca_managers(), |member| member.name.to_string())),
            nodes: Some(show(state.ca_nodes(), |node| node.name.to_string())),
            users: Some(show(state.ca_users(self.clock.now()), |name| name)),
        }
    }

    pub(super) async fn begin_ca_rotation(
        &self,
        request: Request<v1::RotateCaRequest>,
    ) -> Result<Response<v1::CaStatus>, Status> {
        let caller = AuditedCall::of(&request);
        let replace = request.get_ref().ca_digest.parse::<CaDigest>();
        let replace = replace.map_err(|why| status_of(Violation::new("caDigest", why)))?;
        let published = self.read_latest().await?;
        let is_begun = published
            .state
            .ca_rotation()
            .is_some_and(|known| known.phase != CaPhase::Complete || replaced(known, replace));
        if is_begun {
            return Ok(Response::new(self.show_ca(&published.state)));
        }
        let cluster = published.state.cluster().ok_or_else(|| {
            Status::from(Problem::new(Code::Unavailable, "NO_CLUSTER", "the cluster is being created"))
        })?;
        let authority = self.authority.load();
        if authority.digest() != replace {
            let message =
                format!("the CA of the cluster is {}, not {replace}; try again", authority.digest());
            return Err(Problem::new(Code::FailedPrecondition, "CA_CHANGED", message).into());
        }
        let next = authority.successor(SystemTime::now()).map_err(internal_error)?;
        let command = CaCommand::Begin {
            digest: next.digest(),
            sealed: self.secret_object_key.seal(rotation_id(cluster.id), next.to_pem().as_bytes()),
            current: replace,
            certificate: authority.certificate_pem().to_owned(),
            at: self.clock.now(),
        };
        let begun: std::sync::Arc<Cluster> = self.write(Command::Ca(command)).await?;
        caller.identified(ObjectKind::Cluster, begun.id, "", begun.version);
        tracing::info!(%caller, from = %replace, to = %next.digest(), "replacing the certificate authority");
        Ok(Response::new(self.show_ca(&self.store.read().state)))
    }
}

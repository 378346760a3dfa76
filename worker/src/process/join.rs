//! Becoming a member: the cluster's authority is recognised by the token's digest before anything is said, then the
//! token and a certificate request go out, and a certificate comes back.

use warren_process::joining::{self, NOT_JOINED, Refused};
use warren_process::{Exit, Failure, Machine, NodeSection};
use warren_proto::v1::membership_client::MembershipClient;
use warren_proto::{Problem, v1};
use warren_security::{CertificateRequest, Membership, MembershipError, Roots, Token};
use warren_types::{NodeDescription, NodeName, NodeRole};

use super::run::{self, Ended, Occasion};
use super::{JoinArgs, JoinedSection, Shown, Told, WHAT, failed};
use crate::cache::cache_file;
use crate::session::removal_file;

/// Joins, unless this machine is a member of the token's cluster already, and runs the worker. A member that its
/// cluster removed meanwhile joins anew, after what it ran is stopped.
pub(super) async fn join(args: JoinArgs) -> Result<(), Failure> {
    let JoinArgs { address: manager, token, advertise, place, metrics, flags } = args;
    let token = joining::parse_token(&token, NodeRole::Worker)?;
    let machine = Machine::look()?;
    machine.must_be_root("run it as root")?;
    let said = Told {
        data_dir: place.data_dir.clone(),
        node: NodeSection::said(&place, metrics),
        joined: JoinedSection { managers: vec![manager.clone()], advertise, ..JoinedSection::default() },
        flags: flags.clone(),
    };
    let earlier = Told::load(place, metrics, flags)?;
    let (told, shown) = match said.membership().load().map_err(|error| unusable(&error))? {
        Membership::Member { roots, .. } if roots.digests().contains(&token.authority()) => {
            let told = match earlier {
                Some(earlier) => earlier.and(said.joined),
                None => said,
            };
            told.remember()?;
            let shown = Shown::of(&told).await?;
            match run::run_joined(&told, Occasion::Resumed, &shown).await? {
                Ended::Told => return Ok(()),
                // Who removes a node that runs does not want it to come back by itself.
                Ended::Removed { removal, before: false } => return Err(run::removed(&removal)),
                Ended::Removed { before: true, .. } | Ended::Unknown => (told, shown),
            }
        }
        Membership::Member { roots, .. } => return Err(of_another_cluster(&roots)),
        // That its address is taken is said before the cluster hears of this machine.
        Membership::Begun { .. } | Membership::None => {
            let shown = Shown::of(&said).await?;
            (said, shown)
        }
    };
    let greeting = join_anew(&told, &manager, &token, &machine).await?;
    match run::run_joined(&told, Occasion::Joined(greeting), &shown).await? {
        Ended::Removed { removal, .. } => Err(run::removed(&removal)),
        Ended::Told | Ended::Unknown => Ok(()),
    }
}

/// Makes this machine a member; says what to tell the person who wanted that.
async fn join_anew(told: &Told, manager: &str, token: &Token, machine: &Machine) -> Result<String, Failure> {
    let store = told.membership();
    let key = store.ensure_key().map_err(|error| unusable(&error))?;
    let name = machine.node_name(told.flags.node_name.as_ref())?;
    // What this machine lacks is said before the cluster hears of it.
    run::check(&told.data_dir, &told.run_dir(), &told.flags).await?;
    let request = CertificateRequest::create(&key).map_err(|error| failed(NOT_JOINED, &error, ""))?;
    let (roots, answer) = ask(manager, token, request, &name, told).await?;
    // Before the certificate: with the note of an earlier removal beside it, it would be worth nothing.
    forget_earlier(told)
        .map_err(|error| failed(NOT_JOINED, &error, "check the data directory, then try again"))?;
    store.complete(&roots, &answer.certificate).map_err(|error| unusable(&error))?;
    told.remember()?;
    Ok(format!("node {} joined cluster {}\n", answer.node_name, answer.cluster_id))
}

/// Removes what an earlier membership knew: that it was removed, and what it should have run. The node is told its
/// subnet anew, and would make its network twice.
pub(super) fn forget_earlier(told: &Told) -> std::io::Result<()> {
    [removal_file(&told.data_dir), cache_file(&told.data_dir)].iter().try_for_each(|file| super::forget(file))
}

async fn ask(
    manager: &str,
    token: &Token,
    certificate_request: String,
    name: &NodeName,
    told: &Told,
) -> Result<(Roots, v1::JoinResponse), Failure> {
    let (channel, roots) = joining::dial(manager, token).await?;
    let description = NodeDescription {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        address: told.joined.advertise.clone().unwrap_or_default(),
        labels: told.flags.labels(),
        ..NodeDescription::default()
    };
    let request = v1::JoinRequest {
        token: token.reveal().to_string(),
        certificate_request,
        name: name.to_string(),
        description: Some((&description).into()),
    };
    let answer = joining::answer(manager, MembershipClient::new(channel).join(request)).await?;
    Ok((roots, answer.map_err(|status| refused(&status))?.into_inner()))
}

/// What the manager answered, in the words of an exit code.
pub(super) fn refused(status: &tonic::Status) -> Failure {
    let Problem { code, message, violations, reason } = Problem::from(status);
    Refused { code, reason, message, violations }.into_failure(NodeRole::Worker)
}

fn unusable(error: &MembershipError) -> Failure {
    failed(WHAT, error, "check the data directory, or choose another --data-dir")
}

fn of_another_cluster(roots: &Roots) -> Failure {
    let known = roots.digests().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let why = format!("it is a member of another cluster already (CA {known})");
    let hint = "leave that one first with `warren worker leave`, or choose another --data-dir";
    Failure::new(Exit::Conflict, NOT_JOINED, why, hint)
}

//! Runs the checks of a node: it pulls the images of the checks and then opens a stream for the results.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::timeout;
use tokio_stream::StreamExt;
use warren_core::{State, used_registries, verification_peers};
use warren_proto::v1;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_types::{
    BuiltInCheck, CheckProgram, Node, NodeCheck, NodeCheckOutcome, NodeCheckResult, NodeId,
    VerificationSettings,
};

use super::Api;

/// How long the node may take to open a stream.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the node may take beyond the timeout of a check until it reports the result.
const REPORT_DELAY: Duration = Duration::from_secs(15);

impl Api {
    /// Runs the checks of a node that is connected to any manager, and returns one result for each.
    pub async fn verify_node(&self, id: NodeId) -> Vec<NodeCheckResult> {
        let state = self.store.read().state.clone();
        let settings =
            state.cluster().map(|cluster| cluster.settings.verification.clone()).unwrap_or_default();
        let Some(node) = state.node(&id) else { return Vec::new() };
        let mut results = CheckResults::default();
        for check in &settings.checks {
            let CheckProgram::Image { image, .. } = &check.program else { continue };
            let pull = v1::PullImage { reference: image.to_string(), always: false };
            if let Err(why) = self.pull_for_check(id, pull, settings.timeout).await {
                results.add(check.name.as_str(), NodeCheckOutcome::Failed, &why);
            }
        }
        let missing: Vec<&NodeCheck> =
            settings.checks.iter().filter(|check| !results.has(check.name.as_str())).collect();
        let request = verify_request(&state, node, &settings, &missing);
        let failure = self.read_check_results(id, request, settings.timeout, &mut results).await.err();
        let expected = BuiltInCheck::ALL.map(BuiltInCheck::as_str).into_iter();
        let expected: Vec<&str> =
            expected.chain(settings.checks.iter().map(|check| check.name.as_str())).collect();
        results.into_list(&expected, failure.as_deref())
    }

    async fn pull_for_check(
        &self,
        node: NodeId,
        pull: v1::PullImage,
        within: Duration,
    ) -> Result<(), String> {
        let purpose = Purpose::PullImage(pull);
        let pulled = async {
            let mut stream = self.open_stream(node, purpose, ATTACH_TIMEOUT).await?;
            while let Some(message) = stream.inbound.next().await {
                match message.map_err(|status| status.message().to_owned())?.frame {
                    Some(Frame::Error(why)) => return Err(why),
                    Some(Frame::Done(_)) => return Ok(()),
                    _ => {}
                }
            }
            Err("the node closed the stream during the pull".to_owned())
        };
        let late = |_| Err(format!("the image did not arrive within {within:?}"));
        timeout(within, pulled).await.unwrap_or_else(late)
    }

    async fn read_check_results(
        &self,
        node: NodeId,
        request: v1::VerifyNode,
        within: Duration,
        results: &mut CheckResults,
    ) -> Result<(), String> {
        let mut stream = self.open_stream(node, Purpose::VerifyNode(request), ATTACH_TIMEOUT).await?;
        loop {
            let message = timeout(within + REPORT_DELAY, stream.inbound.next()).await;
            let message = message.map_err(|_| "the node reported no result in time".to_owned())?;
            let message = message.transpose().map_err(|status| status.message().to_owned())?;
            match message.and_then(|frame| frame.frame) {
                Some(Frame::CheckResult(result)) => {
                    let result = NodeCheckResult::try_from(result).map_err(|wrong| wrong.to_string())?;
                    results.add(&result.name, result.outcome, &result.message);
                }
                Some(Frame::Error(why)) => return Err(why),
                Some(Frame::Done(_)) => return Ok(()),
                Some(_) | None => return Err("the node closed the stream during its checks".to_owned()),
            }
        }
    }
}

fn verify_request(
    state: &State,
    node: &Node,
    settings: &VerificationSettings,
    checks: &[&NodeCheck],
) -> v1::VerifyNode {
    let peers = verification_peers(state, node).into_iter().filter_map(|peer| {
        let gateway = peer.subnets.first()?.hosts().next()?;
        Some(v1::VerificationPeer { name: peer.name.to_string(), gateway: gateway.to_string() })
    });
    let registries = used_registries(state).into_iter();
    v1::VerifyNode {
        timeout_ms: u64::try_from(settings.timeout.as_millis()).unwrap_or(u64::MAX),
        peers: peers.collect(),
        registries: registries
            .map(|used| v1::VerificationRegistry { host: used.host, required: used.is_required })
            .collect(),
        checks: checks.iter().map(ToString::to_string).collect(),
    }
}

/// The first result of each check.
#[derive(Default)]
struct CheckResults(BTreeMap<String, NodeCheckResult>);

impl CheckResults {
    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn add(&mut self, name: &str, outcome: NodeCheckOutcome, message: &str) {
        self.0.entry(name.to_owned()).or_insert_with(|| NodeCheckResult::new(name, outcome, message));
    }

    /// The results of the expected checks. One that the node did not report has failed.
    fn into_list(mut self, expected: &[&str], failure: Option<&str>) -> Vec<NodeCheckResult> {
        let message = failure.unwrap_or("the node reported no result");
        let missing = |name| NodeCheckResult::new(name, NodeCheckOutcome::Failed, message);
        expected.iter().map(|name| self.0.remove(*name).unwrap_or_else(|| missing(name))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_expected_checks_count_and_missing_ones_have_failed() {
        let mut results = CheckResults::default();
        results.add("dns", NodeCheckOutcome::Passed, "");
        results.add("dns", NodeCheckOutcome::Failed, "later");
        results.add("other", NodeCheckOutcome::Failed, "");
        let found = results.into_list(&["dns", "clock"], Some("the session ended"));
        let expected = [
            NodeCheckResult::new("dns", NodeCheckOutcome::Passed, ""),
            NodeCheckResult::new("clock", NodeCheckOutcome::Failed, "the session ended"),
        ];
        assert_eq!(found, expected);
    }
}

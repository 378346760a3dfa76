//! Networks. The network `default` always exists.

use tonic::{Code, Request, Response, Status};
use warren_proto::v1::task_network::Mode;
use warren_proto::{Problem, v1};

use super::{FakeApi, FakeState, missing};

const DEFAULT: &str = "default";

pub fn default() -> v1::Network {
    v1::Network { id: "w1".into(), name: DEFAULT.into(), version: 1, ..Default::default() }
}

impl FakeState {
    fn network(&self, reference: &str) -> Result<v1::Network, Status> {
        let known = |network: &&v1::Network| network.name == reference || network.id == reference;
        let found = self.networks.iter().find(known).cloned();
        found.map(|network| self.with_services(network)).ok_or_else(|| missing("network", reference))
    }

    /// With the services that are in it.
    fn with_services(&self, network: v1::Network) -> v1::Network {
        let is_in = |spec: &v1::ServiceSpec| match &spec.task.as_ref().unwrap().network {
            None => network.name == DEFAULT,
            Some(v1::TaskNetwork { mode: Some(Mode::Networks(attachments)) }) => {
                attachments.items.iter().any(|attachment| attachment.network == network.name)
            }
            Some(_) => false,
        };
        let specs = self.services.values().filter_map(|service| service.spec.as_ref());
        let services = specs.filter(|spec| is_in(spec)).map(|spec| spec.name.clone()).collect();
        v1::Network { services, ..network }
    }
}

#[tonic::async_trait]
impl v1::networks_server::Networks for FakeApi {
    async fn create(
        &self,
        request: Request<v1::CreateNetworkRequest>,
    ) -> Result<Response<v1::Network>, Status> {
        let v1::CreateNetworkRequest { id, name, labels, internal } = request.into_inner();
        let mut state = self.0.lock().unwrap();
        if state.network(&name).is_ok() {
            let message = format!("network {name} already exists");
            return Err(Problem::new(Code::AlreadyExists, "ALREADY_EXISTS", message).into());
        }
        let network = v1::Network { id, name, version: 2, labels, internal, ..Default::default() };
        state.networks.push(network.clone());
        Ok(Response::new(network))
    }

    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::Network>, Status> {
        self.0.lock().unwrap().network(&request.into_inner().reference).map(Response::new)
    }

    async fn list(
        &self,
        _: Request<v1::ListNetworksRequest>,
    ) -> Result<Response<v1::ListNetworksResponse>, Status> {
        let state = self.0.lock().unwrap();
        let networks = state.networks.iter().cloned().map(|network| state.with_services(network));
        let mut networks: Vec<v1::Network> = networks.collect();
        networks.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Response::new(v1::ListNetworksResponse { networks, next_page_token: String::new() }))
    }

    async fn remove(&self, request: Request<v1::Reference>) -> Result<Response<v1::Network>, Status> {
        let mut state = self.0.lock().unwrap();
        let network = state.network(&request.into_inner().reference)?;
        if network.name == DEFAULT {
            let message = "the network default always exists";
            return Err(Problem::new(Code::FailedPrecondition, "DEFAULT_NETWORK", message).into());
        }
        if !network.services.is_empty() {
            let message = format!("network {} is used by {}", network.name, network.services.join(", "));
            return Err(Problem::new(Code::FailedPrecondition, "NETWORK_IN_USE", message).into());
        }
        state.networks.retain(|known| known.id != network.id);
        Ok(Response::new(network))
    }
}

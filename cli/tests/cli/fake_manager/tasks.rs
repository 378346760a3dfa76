//! Tasks.

use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use warren_proto::v1;

use super::{FakeApi, missing};

#[tonic::async_trait]
impl v1::tasks_server::Tasks for FakeApi {
    type ExecStream = ReceiverStream<Result<v1::ExecResponse, Status>>;

    async fn exec(
        &self,
        _: Request<Streaming<v1::ExecRequest>>,
    ) -> Result<Response<Self::ExecStream>, Status> {
        Err(Status::unimplemented("tests/cluster has the tests with real managers"))
    }

    async fn restart(&self, _: Request<v1::Reference>) -> Result<Response<v1::Task>, Status> {
        Err(Status::unimplemented("tests/e2e has the tests with real tasks"))
    }

    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::Task>, Status> {
        let reference = request.into_inner().reference;
        let state = self.0.lock().unwrap();
        let named = |task: &&v1::Task| format!("{}.{}", task.service_name, task.slot) == reference;
        let found = state.tasks.get(&reference).or_else(|| state.tasks.values().find(named)).cloned();
        found.map(Response::new).ok_or_else(|| missing("task", &reference))
    }

    async fn list(
        &self,
        request: Request<v1::ListTasksRequest>,
    ) -> Result<Response<v1::ListTasksResponse>, Status> {
        let v1::ListTasksRequest { service, node, .. } = request.into_inner();
        let state = self.0.lock().unwrap();
        let expected = |task: &&v1::Task| {
            (service.is_empty() || task.service_id == service) && (node.is_empty() || task.node_id == node)
        };
        let tasks = state.tasks.values().filter(expected).cloned().collect();
        Ok(Response::new(v1::ListTasksResponse { tasks, next_page_token: String::new() }))
    }
}

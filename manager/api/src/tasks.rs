//! Tasks: get, list, restart, and programs in their containers.

use std::sync::Arc;

use tonic::{Request, Response, Status, Streaming};
use warren_core::State;
use warren_core::state::{Command, ObjectKind};
use warren_proto::v1::{self, tasks_server};
use warren_store::problem::status_of;
use warren_types::{DesiredTaskState, NodeId, ServiceId, Task, TaskId};

use super::Api;
use super::admission_policy::{check_service_admission, user_role};
use super::audited_call::AuditedCall;
use super::exec::ExecResponses;
use super::paging::Page;

/// The tasks of a list.
#[derive(Clone, Copy)]
struct TaskListFilter {
    service: Option<ServiceId>,
    node: Option<NodeId>,
    is_current_only: bool,
}

impl TaskListFilter {
    fn parse(state: &State, request: &v1::ListTasksRequest) -> Result<Self, Status> {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_string());
        let service = given(&request.service)
            .map(|name| state.find_service(&name).map(|service| service.id).map_err(status_of))
            .transpose()?;
        let node = given(&request.node)
            .map(|name| state.find_node(&name).map(|node| node.id).map_err(status_of))
            .transpose()?;
        Ok(Self { service, node, is_current_only: request.current })
    }

    fn matches(&self, task: &Task) -> bool {
        self.service.is_none_or(|service| task.id.service == service)
            && self.node.is_none_or(|node| task.node == Some(node))
            && (!self.is_current_only || task.is_live() || task.holds_resources())
    }

    /// The narrowest index that contains all matching tasks after `after`, ordered by id.
    fn candidates(self, state: &State, after: Option<TaskId>) -> Box<dyn Iterator<Item = &Arc<Task>> + '_> {
        let later = move |task: &&Arc<Task>| after.is_none_or(|after| task.id > after);
        match (&self.service, &self.node) {
            (Some(service), _) => Box::new(state.tasks_of(service).filter(later)),
            (None, Some(node)) if self.is_current_only => {
                let mut tasks: Vec<_> = state.tasks_on(node).filter(later).collect();
                tasks.sort_unstable_by_key(|task| task.id);
                Box::new(tasks.into_iter())
            }
            _ => Box::new(state.tasks_after(after)),
        }
    }
}

#[tonic::async_trait]
impl tasks_server::Tasks for Api {
    type ExecStream = ExecResponses;

    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::Task>, Status> {
        let published = self.read(&request).await?;
        let task = published.state.find_task(&request.get_ref().reference).map_err(status_of)?;
        let reports = self.fetch_node_reports(&published.state, task.node).await;
        Ok(Response::new(self.show_task(&published.state, task, &reports)))
    }

    async fn list(
        &self,
        request: Request<v1::ListTasksRequest>,
    ) -> Result<Response<v1::ListTasksResponse>, Status> {
        let published = self.read(&request).await?;
        let request = request.get_ref();
        let page = Page::<TaskId>::parse(request.page_size, &request.page_token)?;
        let (tasks, next_page_token) = {
            let filter = TaskListFilter::parse(&published.state, request)?;
            let admitted =
                filter.candidates(&published.state, page.after).filter(move |task| filter.matches(task));
            page.cut(admitted, |task| task.id)
        };
        let reports =
            self.fetch_node_reports(&published.state, tasks.iter().filter_map(|task| task.node)).await;
        let tasks = tasks.iter().map(|task| self.show_task(&published.state, task, &reports)).collect();
        Ok(Response::new(v1::ListTasksResponse { tasks, next_page_token }))
    }

    async fn exec(
        &self,
        request: Request<Streaming<v1::ExecRequest>>,
    ) -> Result<Response<Self::ExecStream>, Status> {
        self.exec_program(request).await.map(Response::new)
    }

    async fn restart(&self, request: Request<v1::Reference>) -> Result<Response<v1::Task>, Status> {
        let (call, role) = (AuditedCall::of(&request), user_role(&request));
        call.named(ObjectKind::Task, &request.get_ref().reference);
        let published = self.read_latest().await?;
        let state = &published.state;
        let task = state.find_task(&request.get_ref().reference).map_err(status_of)?;
        check_service_admission(role, state, &task.id.service)?;
        call.identified(ObjectKind::Task, task.id, &request.get_ref().reference, None);
        // Another leader refuses it, as it refuses a plan on this state.
        let command = Command::SetDesiredTaskState {
            term: state.applied().term,
            tasks: vec![task.id],
            desired: DesiredTaskState::Remove,
            at: self.clock.now(),
        };
        if task.is_live() {
            self.propose(command).await.map_err(status_of)?;
        }
        let published = self.store.read();
        let task = published.state.task(&task.id).unwrap_or(task);
        let reports = self.fetch_node_reports(&published.state, task.node).await;
        Ok(Response::new(self.show_task(&published.state, task, &reports)))
    }
}

//! Tasks: read.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use warren_core::State;
use warren_proto::v1::{self, tasks_server};
use warren_types::{NodeId, ServiceId, Task, TaskId};

use super::Api;
use super::paging::Page;
use super::problem::status_of;

/// Which tasks a list holds.
#[derive(Clone, Copy)]
struct Filter {
    service: Option<ServiceId>,
    node: Option<NodeId>,
    current: bool,
}

impl Filter {
    fn parse(state: &State, request: &v1::ListTasksRequest) -> Result<Self, Status> {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_string());
        let service = given(&request.service)
            .map(|name| state.find_service(&name).map(|service| service.id).map_err(status_of))
            .transpose()?;
        let node = given(&request.node)
            .map(|name| state.find_node(&name).map(|node| node.id).map_err(status_of))
            .transpose()?;
        Ok(Self { service, node, current: request.current })
    }

    fn admits(&self, task: &Task) -> bool {
        self.service.is_none_or(|service| task.id.service == service)
            && self.node.is_none_or(|node| task.node == Some(node))
            && (!self.current || task.is_live() || task.holds_node())
    }

    /// The narrowest index that holds all that the filter admits, from after `after` on, by id.
    fn candidates(self, state: &State, after: Option<TaskId>) -> Box<dyn Iterator<Item = &Arc<Task>> + '_> {
        let later = move |task: &&Arc<Task>| after.is_none_or(|after| task.id > after);
        match (&self.service, &self.node) {
            (Some(service), _) => Box::new(state.tasks_of(service).filter(later)),
            (None, Some(node)) if self.current => {
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
    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::Task>, Status> {
        let published = self.read(&request).await?;
        let task = published.state.find_task(&request.get_ref().reference).map_err(status_of)?;
        let heard = self.hear(&published.state, task.node).await;
        Ok(Response::new(self.show_task(&published.state, task, &heard)))
    }

    async fn list(
        &self,
        request: Request<v1::ListTasksRequest>,
    ) -> Result<Response<v1::ListTasksResponse>, Status> {
        let published = self.read(&request).await?;
        let request = request.get_ref();
        let page = Page::<TaskId>::parse(request.page_size, &request.page_token)?;
        let (tasks, next_page_token) = {
            let filter = Filter::parse(&published.state, request)?;
            let admitted =
                filter.candidates(&published.state, page.after).filter(move |task| filter.admits(task));
            page.cut(admitted, |task| task.id)
        };
        let heard = self.hear(&published.state, tasks.iter().filter_map(|task| task.node)).await;
        let tasks = tasks.iter().map(|task| self.show_task(&published.state, task, &heard)).collect();
        Ok(Response::new(v1::ListTasksResponse { tasks, next_page_token }))
    }
}

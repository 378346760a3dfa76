//! Forecasts: every task of a changed service is replaced, except of the image `pending`, which no node fits. The image
//! `refused` is refused.

use warren_proto::v1;
use warren_proto::v1::forecast_write::Write;

use super::{FakeState, replicas};

impl FakeState {
    pub(super) fn forecast(&self, request: v1::ForecastRequest) -> v1::ForecastResponse {
        let mut response = v1::ForecastResponse::default();
        for write in request.writes {
            let outcome = self.outcome(write.write.unwrap(), &mut response);
            response.outcomes.push(outcome);
        }
        match request.outcomes_only {
            true => v1::ForecastResponse { outcomes: response.outcomes, ..Default::default() },
            false => response,
        }
    }

    fn outcome(&self, write: Write, response: &mut v1::ForecastResponse) -> v1::ForecastOutcome {
        let changed = match write {
            Write::CreateService(request) => {
                let spec = request.spec.unwrap();
                if spec.task.as_ref().unwrap().image == "refused" {
                    let (refusal, refusal_reason) = ("it is refused".to_owned(), "REFUSED".to_owned());
                    return v1::ForecastOutcome { refusal, refusal_reason, ..Default::default() };
                }
                Self::place(spec, response);
                true
            }
            Write::UpdateService(request) => {
                let found = self.find(&request.reference).unwrap();
                self.stop(&found.id, response);
                let spec = request.spec.unwrap();
                let changed = found.spec.as_ref() != Some(&spec);
                Self::place(spec, response);
                changed
            }
            Write::RemoveService(request) => {
                self.stop(&request.reference, response);
                true
            }
            Write::UpdateSecretObject(request) => {
                let held = self.contents.iter().find(|held| held.object.id == request.reference).unwrap();
                held.versions.last().unwrap()[..] != request.data[..]
            }
            Write::CreateNetwork(_)
            | Write::CreateVolume(_)
            | Write::CreateSecretObject(_)
            | Write::UpdateNode(_) => true,
        };
        v1::ForecastOutcome { changed, ..Default::default() }
    }

    fn place(spec: v1::ServiceSpec, response: &mut v1::ForecastResponse) {
        let is_pending = spec.task.as_ref().unwrap().image == "pending";
        let name = spec.name.clone();
        let service = v1::Service { spec: Some(spec), ..Default::default() };
        for slot in 1..=u32::try_from(replicas(&service)).unwrap() {
            response.slots.push(v1::ForecastSlot {
                service_name: name.clone(),
                slot,
                node_name: if is_pending { String::new() } else { format!("node-{}", (slot - 1) % 2 + 1) },
                reason: if is_pending { "0 of 1 nodes fit: 1 lacks memory".into() } else { String::new() },
                new: true,
            });
        }
    }

    fn stop(&self, service: &str, response: &mut v1::ForecastResponse) {
        for task in self.tasks.values().filter(|task| task.service_id == service) {
            response.stops.push(v1::ForecastStop {
                service_name: task.service_name.clone(),
                slot: task.slot,
                task_id: task.id.clone(),
                node_name: task.node_name.clone(),
            });
        }
    }
}

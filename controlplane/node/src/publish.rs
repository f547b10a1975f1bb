//! Publications: each new image goes to the settings, to the dataplane as a delta of duties and view, and to the
//! coordinators.

use crate::node::Node;
use base::Now;
use image::duties::{self, Origin};
use image::{Publication, Resource};
use link::{Down, DutiesPart, IMAGE_ITEMS_MAX, Removal};

impl Node {
    /// What clients and the dataplane are told about where an image comes from.
    fn origin(&self) -> Origin {
        Origin {
            cluster_id: self.cluster_id.clone(),
            // A single voter has everything that is committed; images leave only once all of it is published.
            caught_up: true,
            kraft_version: self.quorum.kraft_version(),
            controller: self.controller.is_active().then_some(self.options.node),
        }
    }

    pub(crate) fn publish(&mut self, _now: Now) -> bool {
        match self.loader.poll_publication() {
            None => false,
            Some(publication) => {
                self.on_publication(&publication);
                true
            }
        }
    }

    pub(crate) fn on_publication(&mut self, publication: &Publication) {
        let configs = &publication.delta.configs;
        if configs.contains(&Resource::broker_default()) || configs.contains(&Resource::broker(self.options.node)) {
            self.refresh_settings();
        }
        self.coordination.on_publication(publication);
        if self.dataplane.as_ref().is_some_and(|dataplane| dataplane.is_served()) {
            self.send_delta(publication);
        }
    }

    fn refresh_settings(&mut self) {
        let image = self.loader.image();
        let (settings, ignored) = controller::settings_under(&self.options.settings, image, self.options.node);
        for one in ignored {
            tracing::warn!(name = one.name, why = one.why, "a stored dynamic setting is not obeyed");
        }
        self.coordination.settings_changed(settings.clone());
        self.settings = settings;
    }

    fn send_delta(&mut self, publication: &Publication) {
        let origin = self.origin();
        let mut sent = (false, false);
        for part in duties::duties_delta(publication, self.options.node, &origin) {
            self.out.down.push(Down::Duties(Box::new(part)));
            sent.0 = true;
        }
        for part in duties::view_delta(publication, &origin) {
            self.out.down.push(Down::View(Box::new(part)));
            sent.1 = true;
        }
        let offset = publication.image.provenance.offset;
        self.dataplane.as_mut().expect("only a served dataplane is sent deltas").note_sent(offset, sent.0, sent.1);
    }

    /// Everything, at the beginning of a connection; and what was removed while it was away, since an image removes
    /// nothing of the data (design 04).
    pub(crate) fn send_images(&mut self, known_duties: Option<i64>) {
        let origin = self.origin();
        let image = self.loader.image().clone();
        for part in duties::duties_image(&image, self.options.node, &origin) {
            self.out.down.push(Down::Duties(Box::new(part)));
        }
        // A run that has just begun says of none what it knows: it is told of all that are remembered, since its last run
        // may have died with a deletion that was in no commit yet.
        let removals = self.loader.removed_since(known_duties.unwrap_or(-1));
        let removals: Vec<Removal> =
            removals.flat_map(|removed| duties::removals(removed, self.options.node)).collect();
        let provenance = link::Provenance {
            cluster_id: self.cluster_id.clone(),
            quorum_epoch: image.provenance.epoch,
            metadata_offset: image.provenance.offset,
            caught_up: true,
        };
        for run in removals.chunks(IMAGE_ITEMS_MAX) {
            let part = DutiesPart {
                provenance: provenance.clone(),
                image: false,
                last: true,
                duties: Vec::new(),
                removals: run.to_vec(),
            };
            self.out.down.push(Down::Duties(Box::new(part)));
        }
        for part in duties::view_image(&image, &origin) {
            self.out.down.push(Down::View(Box::new(part)));
        }
        let dataplane = self.dataplane.as_mut().expect("images are sent to a dataplane");
        dataplane.note_sent(image.provenance.offset, true, true);
    }
}

//! Tables that a later vpnd has added to, while gateways of this one work on them.

use super::fleet::member;
use super::*;
use crate::postgres::format::{self, STEPS};

impl InDatabase {
    /// Takes the steps that the database lacks, as a vpnd that has all of these does.
    fn bring_up(&self, steps: &'static [&'static str]) -> Result<(), StoreError> {
        once(&self.access, &self.dial, async move |client: &Client| format::bring_up(client, steps).await)
    }

    fn step(&self) -> String {
        self.sql("SELECT step FROM vpnd.format")
    }

    /// With a column more in each table, and a table more.
    fn with_additions(self) -> Self {
        self.sql(
            "DO $$ DECLARE name text; BEGIN
                 FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'vpnd' LOOP
                     EXECUTE format('ALTER TABLE vpnd.%I ADD COLUMN later TEXT NOT NULL DEFAULT ''new''', name);
                 END LOOP;
             END $$; CREATE TABLE vpnd.later (number BIGINT); UPDATE vpnd.format SET step = 99",
        );
        self
    }
}

/// A vpnd neither reads nor fills what it does not know.
mod behaviour {
    crate::conformance::tests! { some!(super::InDatabase::new()).with_additions();
        users: a_user_comes_back_whole_after_reopening,
            a_user_of_another_source_is_one_record_however_often_they_come;
        sessions: sessions_keep_their_tokens_until_they_expire_or_end,
            owners_of_sessions_are_counted_with_their_groups;
        leases: an_address_has_one_owner_at_a_time, a_fixed_address_is_its_users_alone;
        revocations: taking_rights_away_is_an_event_and_voids_sessions;
        api_tokens: a_token_of_the_api_comes_back_whole_and_goes;
        known_devices: a_device_is_known_from_its_first_to_its_last_day;
        refresh_tokens: a_refresh_token_is_the_latest_of_its_user_and_goes_with_the_user;
        provider_sessions: a_session_at_a_provider_leads_to_its_user_while_it_is_among_the_latest;
        invitations: an_invitation_is_good_once_until_its_time;
        wireguard: a_wireguard_device_is_one_users_and_comes_back_whole;
    }
}

#[test]
fn tables_are_upgraded_while_an_earlier_vpnd_continues() {
    let database = some!(InDatabase::new());
    let earlier = database.open_as(member(1, "campus")).unwrap();
    database.sql("ALTER TABLE vpnd.format DROP COLUMN step");
    // Nothing changes by those who only look, or may not come in.
    let holder = Holder { instance: None, ..member(1, "campus") };
    assert!(database.open_as(holder).is_ok(), "a command that looks");
    assert!(database.open_as(member(2, "library")).is_err(), "another fleet's gateway");
    let columns = "SELECT count(*) FROM information_schema.columns
                   WHERE table_schema = 'vpnd' AND table_name = 'format'";
    assert_eq!(database.sql(columns), "2");
    let later = database.open_as(member(2, "campus")).unwrap();
    assert_eq!(database.step(), STEPS.len().to_string());
    earlier.add_user(&ann(), 1).unwrap();
    later.add_user(&named("bob"), 1).unwrap();
    assert_eq!([&earlier, &later].map(|store| store.users().unwrap().len()), [2, 2]);
}

#[test]
fn migration_steps_are_applied_once_and_atomically() {
    const LATER: &[&str] = &[STEPS[0], STEPS[1], STEPS[2], "CREATE TABLE added (id BIGINT)"];
    const BROKEN: &[&str] =
        &[LATER[0], LATER[1], LATER[2], LATER[3], "ALTER TABLE added ADD COLUMN more BIGINT", "nonsense"];
    let database = some!(InDatabase::new());
    std::thread::scope(|scope| {
        let starts = [(); 2].map(|()| scope.spawn(|| database.bring_up(LATER)));
        for start in starts {
            start.join().unwrap().unwrap();
        }
    });
    assert_eq!(database.step(), "4");
    database.bring_up(BROKEN).unwrap_err();
    let columns = "SELECT count(*) FROM information_schema.columns WHERE table_name = 'added'";
    assert_eq!((database.step(), database.sql(columns)), ("4".to_owned(), "1".to_owned()));
    // This vpnd starts on them, and takes nothing back.
    database.gateway().add_user(&ann(), 1).unwrap();
    assert_eq!(database.step(), "4");
}

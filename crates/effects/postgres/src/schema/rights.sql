-- The rights of the role that other nodes connect with. May be run again; also revokes what earlier releases granted: there it was a
-- superuser, and owned subscriptions, publication, functions and tables of ours. One transaction with the role's change.
DO $$
DECLARE o record; us text := quote_ident(current_user);
BEGIN
  -- What runs with its owner's rights, or is read by superusers, belongs to one.
  FOR o IN SELECT format('SUBSCRIPTION %I', subname) AS what FROM pg_catalog.pg_subscription WHERE subowner = 'quorate'::regrole
      AND subdbid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
    UNION ALL SELECT format('PUBLICATION %I', pubname) FROM pg_catalog.pg_publication WHERE pubowner = 'quorate'::regrole
    UNION ALL SELECT format('EVENT TRIGGER %I', evtname) FROM pg_catalog.pg_event_trigger WHERE evtowner = 'quorate'::regrole
    UNION ALL SELECT format('SCHEMA %I', nspname) FROM pg_catalog.pg_namespace WHERE nspowner = 'quorate'::regrole
      AND nspname IN ('mesh', 'mesh_sync')
    UNION ALL SELECT format('FUNCTION %s', p.oid::regprocedure) FROM pg_catalog.pg_proc p WHERE p.proowner = 'quorate'::regrole
      AND p.pronamespace = 'mesh'::regnamespace AND p.proname NOT IN ('stamp', 'lww', 'note')
    UNION ALL SELECT format('%s %s', CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, c.oid::regclass) FROM pg_catalog.pg_class c
      WHERE c.relowner = 'quorate'::regrole AND c.relnamespace IN ('mesh'::regnamespace, 'mesh_sync'::regnamespace) AND c.relkind IN ('r', 'v')
    UNION ALL SELECT format('DATABASE %I', datname) FROM pg_catalog.pg_database WHERE datdba = 'quorate'::regrole AND datname = current_database()
  LOOP
    EXECUTE format('ALTER %s OWNER TO %s', o.what, us);
  END LOOP;
  -- What the journal has made is changed by the journal, whose statements run as this role on every node.
  FOR o IN SELECT format('SCHEMA %I', s.nspname) AS what FROM pg_catalog.pg_namespace s
      WHERE s.nspowner = current_user::regrole AND s.nspname NOT IN ('mesh', 'mesh_sync', 'public') AND mesh.is_published(s.nspname)
    UNION ALL SELECT format('%s %s', CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'S' THEN 'SEQUENCE'
        ELSE 'TABLE' END, c.oid::regclass) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
      WHERE c.relowner = current_user::regrole AND s.nspname NOT IN ('mesh', 'mesh_sync') AND mesh.is_published(s.nspname)
      AND c.relkind IN ('r', 'p', 'v', 'm', 'S') AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.objid = c.oid
        AND d.classid = 'pg_catalog.pg_class'::regclass AND d.deptype IN ('e', 'a', 'i'))
    UNION ALL SELECT format('%s %s', CASE p.prokind WHEN 'p' THEN 'PROCEDURE' WHEN 'a' THEN 'AGGREGATE' ELSE 'FUNCTION' END, p.oid::regprocedure)
      FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace s ON s.oid = p.pronamespace
      WHERE p.proowner = current_user::regrole AND s.nspname NOT IN ('mesh', 'mesh_sync') AND mesh.is_published(s.nspname)
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.objid = p.oid AND d.classid = 'pg_catalog.pg_proc'::regclass AND d.deptype = 'e')
  LOOP
    EXECUTE format('ALTER %s OWNER TO quorate', o.what);
  END LOOP;
  FOR o IN SELECT t.relation::regclass::text AS name, t.schema FROM mesh.tables t LOOP
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO quorate', o.schema);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO quorate', o.name);
  END LOOP;
END $$;
-- These handle columns of any type, whose casts and checks may call functions of the type's owner: not with a superuser's rights.
ALTER FUNCTION mesh.stamp() OWNER TO quorate;
ALTER FUNCTION mesh.lww() OWNER TO quorate;
ALTER FUNCTION mesh.note(text, bool, text, jsonb, jsonb) OWNER TO quorate;

GRANT USAGE ON SCHEMA mesh, mesh_sync TO quorate;
GRANT USAGE, CREATE ON SCHEMA public TO quorate;
REVOKE ALL ON ALL TABLES IN SCHEMA mesh FROM quorate;
GRANT SELECT ON ALL TABLES IN SCHEMA mesh TO quorate;
-- The members, and the slots of each.
GRANT INSERT, UPDATE, DELETE ON mesh.nodes, mesh.slots TO quorate;
-- The journal of schema versions; tables that every link has; a node that leaves; rows that lost.
GRANT INSERT ON mesh.ddl_log TO quorate;
GRANT DELETE ON mesh.pending TO quorate;
GRANT INSERT, DELETE ON mesh.left, mesh.conflicts TO quorate;
GRANT SELECT, INSERT, UPDATE ON mesh_sync.tokens TO quorate;
GRANT EXECUTE ON FUNCTION mesh.is_published(text), mesh.publish(text), mesh.guard_tables(), mesh.last_write_wins(regclass), mesh.uuidv7(),
  mesh.stamp(), mesh.keep(), mesh.purge(interval), mesh.subscribe(int4, text),
  mesh.unsubscribe(text), mesh.pause(text), mesh.resume(text), mesh.revive(text), mesh.skip(text, pg_lsn), mesh.start_at(text, pg_lsn) TO quorate;

-- Positions of subscriptions, names that the server accepts, and the origin under which repairs are written.
GRANT pg_monitor, pg_signal_backend TO quorate;
GRANT SELECT ON pg_catalog.pg_replication_origin_status, pg_catalog.pg_ident_file_mappings TO quorate;
GRANT EXECUTE ON FUNCTION pg_catalog.pg_show_replication_origin_status(), pg_catalog.pg_ident_file_mappings(),
  pg_catalog.pg_replication_origin_session_setup(text), pg_catalog.pg_replication_origin_session_reset() TO quorate;
GRANT SET ON PARAMETER session_replication_role TO quorate;
ALTER ROLE quorate NOSUPERUSER NOCREATEROLE NOCREATEDB NOBYPASSRLS REPLICATION;

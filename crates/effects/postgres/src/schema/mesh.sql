-- What every node has for itself: not replicated, but for the one table of tokens. May be run again.
CREATE SCHEMA IF NOT EXISTS mesh;
CREATE SCHEMA IF NOT EXISTS mesh_sync;
-- Defaults of columns are computed with the rights of whoever inserts.
GRANT USAGE ON SCHEMA mesh TO quorate_apps;

CREATE TABLE IF NOT EXISTS mesh.self (
  one bool PRIMARY KEY DEFAULT true CHECK (one), group_id text NOT NULL, node_id int4 NOT NULL, node text NOT NULL,
  sslcert text NOT NULL, sslkey text NOT NULL, sslrootcert text NOT NULL);
CREATE TABLE IF NOT EXISTS mesh.nodes (id int4 PRIMARY KEY, name text NOT NULL UNIQUE, host text NOT NULL, port int4 NOT NULL);
-- For which data dir a slot was made: one that was made for another life of a node is worth nothing to it.
CREATE TABLE IF NOT EXISTS mesh.slots (
  slot_name text PRIMARY KEY, node_id int4 NOT NULL, system_id text NOT NULL, made_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE IF NOT EXISTS mesh.ddl_log (
  version int4 PRIMARY KEY, name text NOT NULL, sha256 text NOT NULL, sql text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now());
-- Tables that not every link has yet.
CREATE TABLE IF NOT EXISTS mesh.pending (relation oid PRIMARY KEY);
-- Links that stand still on purpose: whoever finds one that an error has stopped lets only the others go on.
CREATE TABLE IF NOT EXISTS mesh.paused (subname text PRIMARY KEY);
-- Links that are stopped because the writer has changed: nothing more of an old writer is applied until it is known what it holds.
CREATE TABLE IF NOT EXISTS mesh.held (subname text PRIMARY KEY);
-- Links whose changes may have been applied after newer ones of the writer: rows are compared before this node takes reads.
CREATE TABLE IF NOT EXISTS mesh.unordered (subname text PRIMARY KEY);
-- Nodes that no longer keep what this one has missed, until they say otherwise.
CREATE TABLE IF NOT EXISTS mesh.lost (node_id int4 PRIMARY KEY, since timestamptz NOT NULL DEFAULT now());
-- A row: this node leaves the group or has left it, and takes no writes, whoever opens the gate.
CREATE TABLE IF NOT EXISTS mesh.left (one bool PRIMARY KEY DEFAULT true CHECK (one), at timestamptz NOT NULL DEFAULT now());
-- Lost with a crash, and closed without a row.
CREATE UNLOGGED TABLE IF NOT EXISTS mesh.gate (
  one bool PRIMARY KEY DEFAULT true CHECK (one), open bool NOT NULL, until_ms int8);
CREATE TABLE IF NOT EXISTS mesh.conflicts (
  id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
  relation text NOT NULL, kind text NOT NULL, came text NOT NULL, kept jsonb NOT NULL, lost jsonb NOT NULL);
CREATE TABLE IF NOT EXISTS mesh_sync.tokens (
  node_id int4 PRIMARY KEY, token int8 NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());

CREATE OR REPLACE FUNCTION mesh.is_published(wanted text) RETURNS bool LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM pg_publication p JOIN pg_publication_namespace n ON n.pnpubid = p.oid
    JOIN pg_namespace s ON s.oid = n.pnnspid WHERE p.pubname = 'mesh' AND s.nspname = wanted)
$$;

-- Publishes every schema but the system's and ours, which takes a superuser. Truncation is not published: no trigger could judge it.
CREATE OR REPLACE FUNCTION mesh.publish(publication text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE wanted text[]; found text[]; list text;
BEGIN
  SELECT array_agg(nspname::text ORDER BY nspname), string_agg(quote_ident(nspname), ', ' ORDER BY nspname) INTO wanted, list
    FROM pg_namespace WHERE nspname <> 'mesh' AND nspname <> 'information_schema' AND nspname !~ '^pg_';
  IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = publication) THEN
    EXECUTE format('CREATE PUBLICATION %I FOR TABLES IN SCHEMA %s WITH (publish = ''insert, update, delete'')', publication, list);
    RETURN;
  END IF;
  SELECT array_agg(s.nspname::text ORDER BY s.nspname) INTO found FROM pg_publication p
    JOIN pg_publication_namespace n ON n.pnpubid = p.oid JOIN pg_namespace s ON s.oid = n.pnnspid WHERE p.pubname = publication;
  IF found IS DISTINCT FROM wanted THEN
    EXECUTE format('ALTER PUBLICATION %I SET TABLES IN SCHEMA %s', publication, list);
  END IF;
END $$;

-- Refuses writes of sessions where they may not be; links are not asked.
CREATE OR REPLACE FUNCTION mesh.guard() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE g record;
BEGIN
  IF EXISTS (SELECT FROM mesh.pending WHERE relation = TG_RELID) THEN
    RAISE EXCEPTION 'table %.% is not on every node yet', TG_TABLE_SCHEMA, TG_TABLE_NAME
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'a change of the schema is under way; try again in a moment';
  END IF;
  IF TG_OP = 'TRUNCATE' THEN
    RAISE EXCEPTION 'table %.% is replicated and cannot be truncated', TG_TABLE_SCHEMA, TG_TABLE_NAME
      USING ERRCODE = 'feature_not_supported', HINT = 'mark rows as deleted instead';
  END IF;
  IF session_user IN ('quorate', 'postgres') THEN
    RETURN NULL;
  END IF;
  IF EXISTS (SELECT FROM mesh.left) THEN
    RAISE EXCEPTION 'this node leaves the group and takes no writes' USING ERRCODE = 'read_only_sql_transaction',
      HINT = 'write through the write port of a node that stays';
  END IF;
  SELECT open, until_ms INTO g FROM mesh.gate;
  IF NOT FOUND OR NOT g.open OR coalesce(g.until_ms <= (extract(epoch FROM clock_timestamp()) * 1000)::int8, false) THEN
    RAISE EXCEPTION 'this node takes no writes' USING ERRCODE = 'read_only_sql_transaction',
      HINT = 'write through the write port, which leads to the write master';
  END IF;
  RETURN NULL;
END $$;

-- Every version of a row says when and where it was made, and from which version.
CREATE OR REPLACE FUNCTION mesh.stamp() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  NEW.updated_at := clock_timestamp();
  SELECT node_id INTO NEW.updated_by FROM mesh.self;
  NEW.base_at := NULL;
  NEW.base_by := NULL;
  IF TG_OP = 'UPDATE' THEN
    -- Later than what it was made from, whatever this machine's clock says.
    NEW.updated_at := greatest(NEW.updated_at, OLD.updated_at + interval '1 microsecond');
    NEW.base_at := OLD.updated_at;
    NEW.base_by := OLD.updated_by;
  END IF;
  RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION mesh.keep() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'rows of %.% are not deleted', TG_TABLE_SCHEMA, TG_TABLE_NAME
    USING ERRCODE = 'feature_not_supported', HINT = 'set deleted_at: a deleted row could not win over a late change elsewhere';
END $$;

CREATE OR REPLACE FUNCTION mesh.note(relation text, certain bool, came text, kept jsonb, lost jsonb) RETURNS void
  LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO mesh.conflicts (relation, kind, came, kept, lost)
    VALUES (relation, CASE WHEN certain THEN 'lost' ELSE 'overtaken' END, came, kept, lost)
$$;

-- The last write wins, and what loses is written down. Runs for links alone; its arguments are the columns of the key.
-- "lost": both were made without knowledge of each other. "overtaken": it came late, and may have been known to the winner.
CREATE OR REPLACE FUNCTION mesh.lww() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  name text := format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME);
  mine record;
  same text;
  n int8 := 1;
BEGIN
  IF TG_OP = 'INSERT' THEN
    SELECT string_agg(format('t.%1$I = ($1).%1$I', c), ' AND ') INTO same FROM unnest(TG_ARGV) c;
    EXECUTE format('SELECT t.* FROM %s t WHERE %s FOR UPDATE', name, same) INTO mine USING NEW;
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n = 0 THEN
      RETURN NEW;
    END IF;
  ELSE
    mine := OLD;
  END IF;
  IF (NEW.updated_at, NEW.updated_by) = (mine.updated_at, mine.updated_by) THEN
    RETURN NULL;
  END IF;
  IF (NEW.updated_at, NEW.updated_by) > (mine.updated_at, mine.updated_by) THEN
    IF (NEW.base_at, NEW.base_by) IS DISTINCT FROM (mine.updated_at, mine.updated_by) THEN
      PERFORM mesh.note(name, mine.updated_at > coalesce(NEW.base_at, '-infinity'), 'here', to_jsonb(NEW), to_jsonb(mine));
    END IF;
    IF TG_OP = 'INSERT' THEN
      EXECUTE format('DELETE FROM %s t WHERE %s', name, same) USING NEW;
    END IF;
    RETURN NEW;
  END IF;
  IF (mine.base_at, mine.base_by) IS DISTINCT FROM (NEW.updated_at, NEW.updated_by) THEN
    PERFORM mesh.note(name, NEW.updated_at > coalesce(mine.base_at, '-infinity'), 'from elsewhere', to_jsonb(mine), to_jsonb(NEW));
  END IF;
  RETURN NULL;
END $$;

-- Has the last write win in a table; to be called where the table is made.
CREATE OR REPLACE FUNCTION mesh.last_write_wins(rel regclass) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE keys text;
BEGIN
  SELECT string_agg(quote_literal(a.attname), ', ' ORDER BY a.attnum) INTO keys FROM pg_index i
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) WHERE i.indrelid = rel AND i.indisprimary;
  IF keys IS NULL THEN
    RAISE EXCEPTION 'table % has no primary key', rel USING ERRCODE = 'object_not_in_prerequisite_state';
  END IF;
  EXECUTE format('ALTER TABLE %s ADD COLUMN IF NOT EXISTS updated_at timestamptz NOT NULL DEFAULT ''epoch'',
    ADD COLUMN IF NOT EXISTS updated_by int4 NOT NULL DEFAULT 0, ADD COLUMN IF NOT EXISTS base_at timestamptz,
    ADD COLUMN IF NOT EXISTS base_by int4, ADD COLUMN IF NOT EXISTS deleted_at timestamptz', rel);
  EXECUTE format('CREATE OR REPLACE TRIGGER mesh_stamp BEFORE INSERT OR UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION mesh.stamp()', rel);
  EXECUTE format('CREATE OR REPLACE TRIGGER mesh_keep BEFORE DELETE ON %s FOR EACH ROW EXECUTE FUNCTION mesh.keep()', rel);
  EXECUTE format('CREATE OR REPLACE TRIGGER mesh_lww BEFORE INSERT OR UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION mesh.lww(%s)', rel, keys);
  EXECUTE format('ALTER TABLE %s ENABLE REPLICA TRIGGER mesh_lww', rel);
END $$;

-- Every table that is published, but the tokens.
CREATE OR REPLACE VIEW mesh.tables AS
  SELECT c.oid AS relation, s.nspname AS schema, c.relname AS name,
    EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) AS keyed,
    EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = 'mesh_lww') AS lww,
    EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = 'mesh_guard') AS guarded
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
  WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND s.nspname <> 'mesh_sync' AND mesh.is_published(s.nspname)
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.objid = c.oid AND d.classid = 'pg_catalog.pg_class'::regclass AND d.deptype = 'e');

-- Puts the guard before tables that have none, and keeps them closed until every link has them. The role of other nodes copies and
-- repairs rows of tables that it does not own too.
CREATE OR REPLACE FUNCTION mesh.guard_tables() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE t record;
BEGIN
  FOR t IN SELECT relation, schema FROM mesh.tables WHERE NOT guarded LOOP
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO quorate', t.schema);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO quorate', t.relation::regclass);
    EXECUTE format('CREATE TRIGGER mesh_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s
      FOR EACH STATEMENT EXECUTE FUNCTION mesh.guard()', t.relation::regclass);
    INSERT INTO mesh.pending VALUES (t.relation) ON CONFLICT DO NOTHING;
  END LOOP;
END $$;

-- Removes rows that were marked as deleted long ago. Called under an origin, so that it is not replicated: every node does it.
CREATE OR REPLACE FUNCTION mesh.purge(older interval) RETURNS int8 LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
  SET session_replication_role = replica AS $$
DECLARE t record; n int8; total int8 := 0;
BEGIN
  FOR t IN SELECT relation FROM mesh.tables WHERE lww LOOP
    EXECUTE format('DELETE FROM %s WHERE deleted_at < now() - $1', t.relation::regclass) USING older;
    GET DIAGNOSTICS n = ROW_COUNT;
    total := total + n;
  END LOOP;
  RETURN total;
END $$;

-- Replicated tables are changed through the journal alone: a change on one node would stop the links of the others.
CREATE OR REPLACE FUNCTION mesh.only_by_journal(touched text[]) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF touched <> '{}' AND (session_user NOT IN ('quorate', 'postgres') OR current_setting('mesh.ddl', true) IS DISTINCT FROM 'on') THEN
    RAISE EXCEPTION '% belongs to the group, whose schema is changed on all nodes at once', touched[1]
      USING ERRCODE = 'insufficient_privilege', HINT = 'put the change into a file and run: quorate pg ddl apply FILE';
  END IF;
END $$;
CREATE OR REPLACE FUNCTION mesh.on_ddl() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM mesh.only_by_journal(ARRAY(SELECT c.object_identity FROM pg_event_trigger_ddl_commands() c
    WHERE NOT c.in_extension AND c.schema_name IS NOT NULL AND mesh.is_published(c.schema_name)
      AND (c.object_type = 'table' OR (c.object_type = 'index' AND c.command_tag = 'CREATE INDEX'
        AND (SELECT i.indisunique FROM pg_index i WHERE i.indexrelid = c.objid)))));
END $$;
CREATE OR REPLACE FUNCTION mesh.on_drop() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM mesh.only_by_journal(ARRAY(SELECT d.object_identity FROM pg_event_trigger_dropped_objects() d
    WHERE d.object_type IN ('table', 'table column') AND NOT d.is_temporary AND mesh.is_published(d.schema_name)));
END $$;
-- What other nodes may have done to the subscriptions of this one. The role that they connect with owns none of them: each function
-- does one thing, to subscriptions of the mesh alone.
CREATE OR REPLACE FUNCTION mesh.check_link(link text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF link IS NULL OR link !~ '^mesh_n[0-9]{1,3}_from_n[0-9]{1,3}$' THEN
    RAISE EXCEPTION '% is no subscription of the mesh', coalesce(link, 'NULL') USING ERRCODE = 'insufficient_privilege';
  END IF;
END $$;

-- Subscribes to a member whose slot exists. Address and files come from the tables of this node, and certificates are always checked.
CREATE OR REPLACE FUNCTION mesh.subscribe(member int4, start text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
  SET search_path = pg_catalog, pg_temp AS $$
DECLARE me mesh.self; other mesh.nodes; link text; conninfo text;
BEGIN
  SELECT * INTO STRICT me FROM mesh.self;
  SELECT * INTO STRICT other FROM mesh.nodes WHERE id = member AND id <> me.node_id;
  IF start NOT IN ('changes', 'copy', 'disabled') OR other.host ~ '[/,[:cntrl:]]' THEN
    RAISE EXCEPTION 'cannot subscribe to member % in this way', member USING ERRCODE = 'invalid_parameter_value';
  END IF;
  link := format('mesh_n%s_from_n%s', me.node_id, other.id);
  SELECT string_agg(format('%s=''%s''', p.name, replace(replace(p.value, E'\\', E'\\\\'), '''', E'\\''')), ' ') INTO conninfo FROM (VALUES
    ('host', other.host), ('port', other.port::text), ('user', 'quorate'), ('dbname', current_database()::text),
    ('application_name', link), ('sslmode', 'verify-full'), ('sslcert', me.sslcert), ('sslkey', me.sslkey),
    ('sslrootcert', me.sslrootcert), ('connect_timeout', '5'), ('keepalives_idle', '5'), ('keepalives_interval', '2'),
    ('keepalives_count', '3'), ('tcp_user_timeout', '10000')) AS p (name, value);
  -- Stored together with it: one that is to start later is not one that an error has stopped.
  IF start = 'disabled' THEN
    INSERT INTO mesh.paused VALUES (link) ON CONFLICT DO NOTHING;
  END IF;
  -- A lost connection counts as an error too; the agent of this node enables such a subscription again.
  EXECUTE format('CREATE SUBSCRIPTION %I CONNECTION %L PUBLICATION mesh WITH (create_slot = false, slot_name = %L, enabled = %s,
    copy_data = %s, origin = none, streaming = parallel, disable_on_error = true)', link, conninfo, link,
    CASE start WHEN 'disabled' THEN 'false' ELSE 'true' END, CASE start WHEN 'copy' THEN 'true' ELSE 'false' END);
END $$;

-- Drops a subscription without contacting its publisher, which may be gone.
CREATE OR REPLACE FUNCTION mesh.unsubscribe(link text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM mesh.check_link(link);
  EXECUTE format('ALTER SUBSCRIPTION %I DISABLE', link);
  EXECUTE format('ALTER SUBSCRIPTION %I SET (slot_name = NONE)', link);
  EXECUTE format('DROP SUBSCRIPTION %I', link);
  DELETE FROM mesh.paused WHERE subname = link;
END $$;

-- Stops a subscription on purpose: only mesh.resume continues it.
CREATE OR REPLACE FUNCTION mesh.pause(link text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM mesh.check_link(link);
  INSERT INTO mesh.paused VALUES (link) ON CONFLICT DO NOTHING;
  EXECUTE format('ALTER SUBSCRIPTION %I DISABLE', link);
END $$;

-- Continues a subscription that was stopped on purpose, unless it is held because the writer has changed.
CREATE OR REPLACE FUNCTION mesh.resume(link text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM mesh.check_link(link);
  LOCK TABLE mesh.paused, mesh.held IN SHARE ROW EXCLUSIVE MODE;
  DELETE FROM mesh.paused WHERE subname = link;
  IF NOT EXISTS (SELECT FROM mesh.held WHERE subname = link) THEN
    EXECUTE format('ALTER SUBSCRIPTION %I ENABLE', link);
  END IF;
END $$;

-- Continues a subscription that an error has stopped; one that was stopped on purpose stays stopped.
CREATE OR REPLACE FUNCTION mesh.revive(link text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM mesh.check_link(link);
  LOCK TABLE mesh.paused, mesh.held IN SHARE MODE;
  IF NOT EXISTS (SELECT FROM mesh.paused WHERE subname = link UNION ALL SELECT FROM mesh.held WHERE subname = link) THEN
    EXECUTE format('ALTER SUBSCRIPTION %I ENABLE', link);
  END IF;
END $$;

-- Has a subscription skip the transaction that ends at a position, and continues it. False: it is paused, and nothing was changed.
CREATE OR REPLACE FUNCTION mesh.skip(link text, finish pg_lsn) RETURNS bool LANGUAGE plpgsql SECURITY DEFINER
  SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM mesh.check_link(link);
  LOCK TABLE mesh.paused IN SHARE MODE;
  IF EXISTS (SELECT FROM mesh.paused WHERE subname = link) THEN
    RETURN false;
  END IF;
  EXECUTE format('ALTER SUBSCRIPTION %I SKIP (lsn = %L)', link, finish);
  EXECUTE format('ALTER SUBSCRIPTION %I ENABLE', link);
  RETURN true;
END $$;

-- Has a subscription that has not started yet start at a position of its publisher's log.
CREATE OR REPLACE FUNCTION mesh.start_at(link text, at pg_lsn) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
  SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM mesh.check_link(link);
  PERFORM pg_replication_origin_advance('pg_' || s.oid, at) FROM pg_subscription s
    JOIN mesh.paused p ON p.subname = s.subname WHERE s.subname = link AND NOT s.subenabled;
END $$;

DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_event_trigger WHERE evtname = 'mesh_ddl') THEN
    CREATE EVENT TRIGGER mesh_ddl ON ddl_command_end EXECUTE FUNCTION mesh.on_ddl();
    CREATE EVENT TRIGGER mesh_drop ON sql_drop EXECUTE FUNCTION mesh.on_drop();
  END IF;
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_replication_origin WHERE roname = 'mesh_repair') THEN
    PERFORM pg_catalog.pg_replication_origin_create('mesh_repair');
  END IF;
END $$;
-- Whoever could hang these before a table of his own would run them with our rights.
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA mesh FROM PUBLIC;

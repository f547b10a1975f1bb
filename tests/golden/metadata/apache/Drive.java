// What was done to the node (server.properties) whose metadata log and snapshots lie here.
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.*;
import org.apache.kafka.common.resource.*;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;
public class Drive { public static void main(String[] a) throws Exception {
 Properties p=new Properties(); p.put("bootstrap.servers","localhost:19392");
 try (Admin admin=Admin.create(p)) {
  admin.createTopics(List.of(new NewTopic("one",3,(short)1).configs(Map.of("retention.ms","1000","cleanup.policy","compact")), new NewTopic("two.x",1,(short)1), new NewTopic("gone",2,(short)1).configs(Map.of("retention.ms","5")))).all().get();
  admin.createPartitions(Map.of("two.x",NewPartitions.increaseTo(4))).all().get();
  admin.deleteTopics(List.of("gone")).all().get();
  ConfigResource t=new ConfigResource(ConfigResource.Type.TOPIC,"one"), b=new ConfigResource(ConfigResource.Type.BROKER,"1"), d=new ConfigResource(ConfigResource.Type.BROKER,""), g=new ConfigResource(ConfigResource.Type.GROUP,"g"), m=new ConfigResource(ConfigResource.Type.CLIENT_METRICS,"m");
  admin.incrementalAlterConfigs(Map.of(t,List.of(new AlterConfigOp(new ConfigEntry("segment.bytes","2000000"),AlterConfigOp.OpType.SET),new AlterConfigOp(new ConfigEntry("retention.ms",null),AlterConfigOp.OpType.DELETE)), b,List.of(new AlterConfigOp(new ConfigEntry("log.cleaner.threads","2"),AlterConfigOp.OpType.SET)), d,List.of(new AlterConfigOp(new ConfigEntry("message.max.bytes","2000000"),AlterConfigOp.OpType.SET)), g,List.of(new AlterConfigOp(new ConfigEntry("consumer.session.timeout.ms","50000"),AlterConfigOp.OpType.SET)), m,List.of(new AlterConfigOp(new ConfigEntry("interval.ms","1000"),AlterConfigOp.OpType.SET)))).all().get();
  admin.createAcls(List.of(acl("User:a","one"),acl("User:b","two.x"))).all().get();
  admin.deleteAcls(List.of(acl("User:b","two.x").toFilter())).all().get();
  admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion("alice",new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256,4096),"secret"), new UserScramCredentialUpsertion("bob",new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512,4096),"secret"))).all().get();
  admin.alterUserScramCredentials(List.of(new UserScramCredentialDeletion("bob",ScramMechanism.SCRAM_SHA_512))).all().get();
  admin.alterClientQuotas(List.of(new ClientQuotaAlteration(new ClientQuotaEntity(Map.of("user","alice","client-id","c")),List.of(new ClientQuotaAlteration.Op("producer_byte_rate",1e6),new ClientQuotaAlteration.Op("consumer_byte_rate",2e6))))).all().get();
  Map<String,String> def=new HashMap<>(); def.put("user",null);
  admin.alterClientQuotas(List.of(new ClientQuotaAlteration(new ClientQuotaEntity(def),List.of(new ClientQuotaAlteration.Op("request_percentage",50.0))))).all().get();
  Properties q=new Properties(); q.putAll(p); 
  try (KafkaProducer<String,String> k=new KafkaProducer<>(q,new StringSerializer(),new StringSerializer())) { k.send(new ProducerRecord<>("two.x","k","v")).get(); }
  admin.createTopics(List.of(new NewTopic("three",Map.of(0,List.of(1),1,List.of(1))))).all().get();
 } System.out.println("driven"); }
 static AclBinding acl(String u,String t){ return new AclBinding(new ResourcePattern(ResourceType.TOPIC,t,PatternType.LITERAL),new AccessControlEntry(u,"*",AclOperation.READ,AclPermissionType.ALLOW)); } }
